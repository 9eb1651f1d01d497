"""A statement whose values are given beside it, not copied into it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy.sql.elements import TextClause

# One plan is as good as any, for all values and whatever the tables hold.
FOR_EVER = math.inf
# One plan is as good as any for all values, but not whatever the tables hold: what was planned in
# a lull may be a poor plan in the rush that follows, and must not outlive its first moment.
A_MOMENT = 1.0


@dataclass(frozen=True, slots=True)
class Bound:
    """A text and its values: binding twenty of them into a copy costs as much as sending them.

    The text says the type of each value by a CAST. ``plan_seconds`` is how long Postgres may keep
    its plan, for whatever values: 0 has it planned anew each time.
    """

    clause: TextClause
    values: Mapping[str, Any]
    plan_seconds: float = 0.0

    @property
    def text(self) -> str:
        """Give the text as it was written."""
        return self.clause.text
