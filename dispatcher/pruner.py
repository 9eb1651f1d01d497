"""Removes what is older than its retention, a small batch of each sort at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from schema.statements import retention

if TYPE_CHECKING:
    from infra.database import Database
    from infra.settings import Settings

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Retention:
    """For how many days each sort of record is kept; 0: for ever."""

    jobs_days: float
    attempts_days: float
    parked_messages_days: float
    redrives_days: float

    @classmethod
    def from_settings(cls, settings: Settings) -> Retention:
        """Take what the settings say."""
        return cls(
            jobs_days=settings.retain_jobs_days,
            attempts_days=settings.retain_attempts_days,
            parked_messages_days=settings.retain_parked_messages_days,
            redrives_days=settings.retain_redrives_days,
        )


class Pruner:
    """Takes only rows that nobody else has locked: instances share the work and never wait."""

    name = "pruner"

    def __init__(
        self, database: Database, *, keep: Retention, most: int, most_inputs: int = 5_000
    ) -> None:
        self._database = database
        self._keep = keep
        self._most = most
        self._most_inputs = most_inputs

    async def once(self) -> int:
        """Remove a batch of each sort; return how many rows were marked or removed."""
        keep, most, many = self._keep, self._most, self._most_inputs
        found: int = 0
        if keep.jobs_days:
            marked = await self._database.fetch(
                retention.mark_prunable_jobs(keep.jobs_days, most=most)
            )
            found += len(marked)
        # What was once marked has begun to go, whatever the setting says now.
        (pruned,) = await self._database.fetch(
            retention.prune_marked_jobs(most_jobs=most, most_inputs=many)
        )
        found += int(pruned.inputs + pruned.jobs)
        for days, statement in (
            (keep.attempts_days, retention.prune_attempts),
            (keep.parked_messages_days, retention.prune_messages),
            (keep.redrives_days, retention.prune_redrives),
        ):
            if days:
                found += len(await self._database.fetch(statement(days, most=many)))
        if found:
            log.info("pruner.pruned", rows=found, jobs=pruned.jobs, inputs=pruned.inputs)
        return found
