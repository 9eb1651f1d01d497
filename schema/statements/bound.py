"""A statement whose values are given beside it, not copied into it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy.sql.elements import TextClause


@dataclass(frozen=True, slots=True)
class Bound:
    """A text and its values: binding twenty of them into a copy costs as much as sending them.

    The text says the type of each value by a CAST. ``is_planned_once`` promises that one plan is
    as good as any for all values and whatever the tables hold, so that Postgres may keep it.
    """

    clause: TextClause
    values: Mapping[str, Any]
    is_planned_once: bool = False

    @property
    def text(self) -> str:
        """Give the text as it was written."""
        return self.clause.text
