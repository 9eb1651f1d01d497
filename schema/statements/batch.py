"""A statement that changes many rows, and its other forms for where one of them spoils it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa

from schema.statements.bound import Bound

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from uuid import UUID

    from sqlalchemy.sql.elements import TextClause

# Of ``o``, an entry. Of jobs that are shunned nothing is taken: who claims could not settle it at
# the moment, or a row of theirs cannot be written.
NOT_SHUNNED = "o.job_id <> ALL (CAST(:shunned AS uuid[]))"
THESE = "o.id = ANY (CAST(:ids AS bigint[]))"
# The same of ``o``, a job.
_NOT_SHUNNED_JOBS = "o.id <> ALL (CAST(:shunned AS uuid[]))"
_THESE_JOBS = "o.id = ANY (CAST(:ids AS uuid[]))"


class Forms(NamedTuple):
    """The texts of a statement that changes many rows.

    The first changes whatever it finds but of ``:shunned`` jobs; the second, of the same, only rows
    with ``:ids``; the third says what the first would change: rows of (id, job_id).
    """

    whichever: TextClause
    these: TextClause
    found: TextClause


def entry_forms(target: str, change: str) -> Forms:
    """Write a change of entries: ``target`` selects them from ``outbox o`` WHERE {which}."""
    return _forms(target, change, NOT_SHUNNED, THESE)


def job_forms(target: str, change: str) -> Forms:
    """Write a change of jobs: ``target`` selects them from ``job o`` WHERE {which}."""
    return _forms(target, change, _NOT_SHUNNED_JOBS, _THESE_JOBS)


def _forms(target: str, change: str, whichever: str, these: str) -> Forms:
    return Forms(
        sa.text(change.format(target=target.format(which=whichever))),
        sa.text(change.format(target=target.format(which=these))),
        sa.text(target.format(which=whichever)),
    )


@dataclass(frozen=True, slots=True)
class Batch(Bound):
    """A change of many rows in its usual form, which knows the others."""

    forms: Forms = field(kw_only=True)

    @classmethod
    def of(cls, forms: Forms, values: Mapping[str, Any], plan_seconds: float = 0.0) -> Batch:
        """Give the change of whatever there is."""
        return cls(forms.whichever, {"shunned": [], **values}, plan_seconds, forms=forms)

    def without(self, jobs: Collection[UUID]) -> Batch:
        """Give the same change, but of nothing of these jobs."""
        return replace(self, values={**self.values, "shunned": list(jobs)}) if jobs else self

    def found(self) -> Bound:
        """Give the statement that says what this would change: rows of (id, job_id)."""
        return Bound(self.forms.found, self.values)

    def these(self, ids: Sequence[Any]) -> Bound:
        """Give the change of those of the named rows that this would change."""
        return Bound(self.forms.these, {**self.values, "ids": list(ids)})
