"""The decoder's own scanner, three times: strict, plain, and one that says what was wrong.

What Postgres could not keep is unusual: NaN and infinities, names given twice, numbers beyond its
range.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from json.scanner import make_scanner
from typing import TYPE_CHECKING, Any

from schema.limits import INT8

if TYPE_CHECKING:
    from collections.abc import Callable

_INT8_DIGITS = 20
# Postgres keeps up to 16,383 digits behind the point, which 1e-16384 asks for in nine characters.
_NUMBER_CHARACTERS = 1_000
_EXPONENTS = range(-400, 401)
_SHORT_DIGITS = 18


class Unusual(Exception):
    """Something cannot be stored: read it again, leniently, to say where."""


class Members(list[tuple[str, Any]]):
    """The members of an object, repeated names included."""


@dataclass(frozen=True, slots=True)
class Unstorable:
    """A number that cannot be kept, and why."""

    reason: str


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise Unusual
    return members


def _constant(name: str) -> Unstorable:
    return Unstorable(f"{name} is not a JSON number")


def _integer(digits: str) -> int | Unstorable:
    if len(digits) <= _INT8_DIGITS and int(digits) in INT8:
        return int(digits)
    return Unstorable("is an integer beyond 64 bits")


def _float(text: str) -> float | Unstorable:
    if len(text) > _NUMBER_CHARACTERS:
        return Unstorable(f"is a number of more than {_NUMBER_CHARACTERS} characters")
    number = float(text)
    if number in (float("inf"), float("-inf")):
        return Unstorable("is a number too large to keep")
    digits, _, exponent = text.lower().partition("e")
    if number == 0 and digits.strip("-0."):
        return Unstorable("is a number too small to keep")
    if exponent and int(exponent) not in _EXPONENTS:
        return Unstorable(f"has an exponent beyond {_EXPONENTS[-1]}")
    return number


def _strictly(read: Callable[[str], object]) -> Callable[[str], object]:
    def storable(text: str) -> object:
        number = read(text)
        if type(number) is Unstorable:
            raise Unusual
        return number

    return storable


def _scanner(**hooks: Any) -> Callable[[str, int], tuple[Any, int]]:
    # The decoder's own scanner: unlike raw_decode it neither wraps nor re-words its errors.
    decoder: Any = json.JSONDecoder(**hooks)
    scan: Callable[[str, int], tuple[Any, int]] = make_scanner(decoder)
    return scan


scan_strictly = _scanner(
    object_pairs_hook=_unique,
    parse_constant=_strictly(_constant),
    parse_int=_strictly(_integer),
    parse_float=_strictly(_float),
)


def _short_integer(digits: str) -> int:
    if len(digits) > _SHORT_DIGITS:
        raise Unusual
    return int(digits)


# Four times as fast, but it lets the last of repeated names win.
scan_plainly = _scanner(
    parse_constant=_strictly(_constant),
    parse_int=_short_integer,
    parse_float=_strictly(_float),
)
scan_leniently = _scanner(
    object_pairs_hook=Members,
    parse_constant=_constant,
    parse_int=_integer,
    parse_float=_float,
)
