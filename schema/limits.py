"""What a number of a kind may be: a kind from outside is checked when it is made, not by its jobs.

The bounds are those of the tables and of what operators may set (``KindPolicy``).
"""

from __future__ import annotations

import math

# What Postgres keeps of whole numbers.
INT8 = range(-(2**63), 2**63)
MOST_ATTEMPTS = 100
MOST_CHUNK_INPUTS = 10_000
MOST_AT_ONCE = 10_000
MOST_BACKOFF_BASE_SECONDS = 86_400
MOST_BACKOFF_CAP_SECONDS = 2_592_000


def check_whole(name: str, value: object, *, least: int, most: int) -> None:
    """Raise ``ValueError`` unless the value is a whole number within the bounds."""
    if type(value) is not int or not least <= value <= most:
        msg = f"{name} must be a whole number from {least} to {most}, not {value!r}"
        raise ValueError(msg)


def check_number(name: str, value: object, *, least: float = 0.0, most: float = math.inf) -> None:
    """Raise ``ValueError`` unless the value is a finite number within the bounds."""
    is_within = (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and least <= value <= most
    )
    if not is_within:
        upper = f" to {most:g}" if math.isfinite(most) else " on"
        msg = f"{name} must be a number from {least:g}{upper}, not {value!r}"
        raise ValueError(msg)


def check_positive(name: str, value: object) -> None:
    """Raise ``ValueError`` unless the value is a finite number above 0."""
    check_number(name, value)
    if not value:
        msg = f"{name} must be above 0"
        raise ValueError(msg)
