"""Statements on how long an input of each kind takes, which the size of chunks follows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy.sql.elements import TextClause

# Nothing takes no time.
LEAST_MS = 0.001

_PACES = sa.text("SELECT kind, input_ms FROM kind_pace")

# Consumers write side by side: each moves the pace towards what it saw, and none decides alone.
# All take the rows in one order. Nothing is worth more than a day.
_BLEND = sa.text(
    """
INSERT INTO kind_pace AS pace (kind, input_ms)
SELECT kind, least(greatest(input_ms, CAST(:least_ms AS double precision)), 86400000)
FROM unnest(CAST(:kinds AS text[]), CAST(:input_ms AS double precision[])) AS m (kind, input_ms)
ORDER BY kind
ON CONFLICT (kind) DO UPDATE
SET input_ms = pace.input_ms + CAST(:weight AS double precision)
                             * (excluded.input_ms - pace.input_ms),
    measured_at = now()
RETURNING pace.kind, pace.input_ms
"""
)


def list_paces() -> TextClause:
    """List how long an input of each kind takes: (kind, input_ms)."""
    return _PACES


def blend_paces(input_ms: Mapping[str, float], *, weight: float) -> TextClause:
    """Move each kind's pace by ``weight`` (0 to 1) of the way to what was measured, in ms.

    A kind without a pace takes over what was measured. Gives what it is now: (kind, input_ms).
    """
    return _BLEND.bindparams(
        kinds=list(input_ms), input_ms=list(input_ms.values()), weight=weight, least_ms=LEAST_MS
    )
