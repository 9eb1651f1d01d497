"""Recording outcomes: what the consumer and the reaper have in common.

One commit takes outcomes of any number of claims. Each is accepted only under the epoch that
holds the claim; what is not accepted changed nothing. Running it again after a commit whose
answer was lost is harmless: an input already settled no longer carries the entry's id.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from infra.database import rows_of
from schema.lifecycle import UNFINISHED_INPUT_STATUSES, InputStatus
from schema.outcome import Backoff, Succeeded, Verdict, decide, fingerprint
from schema.statements import settle as statements

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from sqlalchemy import Row
    from sqlalchemy.ext.asyncio import AsyncConnection
    from sqlalchemy.sql.elements import TextClause

    from infra.queue.protocol import Claim, ClaimedInput
    from schema.outcome import Outcome
    from schema.statements.bound import Bound

Key = tuple[int, int]
Result = TypeVar("Result")
# A process may settle what it cannot run: a reaper that was deployed before the kind was.
_OF_AN_UNKNOWN_KIND = Backoff()


class Committing(Protocol):
    """Who commits: the database, or who bounds what is waited for there."""

    async def fetch(self, statement: TextClause | Bound) -> Sequence[Row[Any]]:
        """Run one statement and commit it."""
        ...

    async def run(self, unit: Callable[[AsyncConnection], Awaitable[Result]]) -> Result:
        """Run a unit of work in one transaction."""
        ...


# A tuple: it is made for every input, and a frozen dataclass costs several times as much.
class Settlement(NamedTuple):
    """What came of one input of a claim."""

    claim: Claim
    input: ClaimedInput
    outcome: Outcome
    elapsed_ms: int | None

    @property
    def key(self) -> Key:
        """Name the input: (entry id, ordinal)."""
        return self.claim.entry_id, self.input.ordinal


class Settled(NamedTuple):
    """A settlement and what was decided of it; ``accepted`` unless the lease was lost.

    ``ended_early``: this commit ended the job, and inputs are left for the sweeper to end.
    """

    settlement: Settlement
    verdict: Verdict
    accepted: bool
    ended_early: bool


@dataclass(slots=True)
class _Line:
    """A settlement on its way into the database."""

    settlement: Settlement
    verdict: Verdict
    next_entry_id: int | None = None

    @property
    def attempt(self) -> int:
        return self.settlement.input.attempts + 1

    @property
    def follow_up(self) -> tuple[int, int, float] | None:
        """Name the follow-up entry that this input shares with its like, if it goes on.

        What lapsed shares with nobody, so that a killer input takes no neighbours with it.
        """
        if self.verdict.status not in UNFINISHED_INPUT_STATUSES:
            return None
        alone = self.verdict.status is InputStatus.PENDING
        entry_id, ordinal = self.settlement.key
        return entry_id, ordinal if alone else -self.attempt, self.verdict.delay_seconds or 0.0


async def settle(
    database: Committing,
    worker: str,
    settlements: Sequence[Settlement],
    *,
    backoffs: Mapping[str, Backoff],
    jitter: Callable[[], float],
    events: bool = False,
) -> list[Settled]:
    """Record outcomes in one commit; raises ``Unavailable`` when nothing can be known.

    With ``events``, the same commit orders an event for each input that died.
    """
    shares: dict[Key, float] = defaultdict(jitter)
    lines = [
        _Line(
            settlement,
            decide(
                outcome,
                attempt=input_.attempts + 1,
                max_attempts=claim.max_attempts,
                backoff=backoffs.get(claim.kind, _OF_AN_UNKNOWN_KIND),
                jitter=shares[claim.entry_id, input_.attempts],
            ),
        )
        for settlement in settlements
        for claim, input_, outcome, _ in (settlement,)
    ]
    if all(_is_plain(line) for line in lines):
        accepted = _accepted(await database.fetch(_settle_statement(lines)))
    else:

        async def unit(connection: AsyncConnection) -> dict[Key, bool]:
            return await _settle_with_consequences(connection, worker, lines, events=events)

        accepted = await database.run(unit)
    return [
        Settled(line.settlement, line.verdict, key in accepted, accepted.get(key, False))
        for line in lines
        for key in (line.settlement.key,)
    ]


def _is_plain(line: _Line) -> bool:
    """Say whether the input's row, entry and counters are all that the outcome touches."""
    outcome = line.settlement.outcome
    if isinstance(outcome, Succeeded):
        return outcome.artifact is None
    return line.verdict.status is InputStatus.SKIPPED


async def _settle_with_consequences(
    connection: AsyncConnection, worker: str, lines: Sequence[_Line], *, events: bool
) -> dict[Key, bool]:
    groups: dict[tuple[int, int, float], list[_Line]] = defaultdict(list)
    for line in lines:
        if line.follow_up is not None:
            groups[line.follow_up].append(line)
    if groups:
        reserved = await connection.execute(statements.reserve_entry_ids(len(groups)))
        for row, members in zip(reserved.all(), groups.values(), strict=True):
            for line in members:
                line.next_entry_id = row.id
    accepted = _accepted(await rows_of(connection, _settle_statement(lines)))
    taken = [line for line in lines if line.settlement.key in accepted]
    follow_ups = _follow_ups(taken)
    if follow_ups["ids"]:
        await connection.execute(statements.insert_follow_ups(follow_ups))
    await _record_failures(connection, worker, taken, events=events)
    artifacts = _artifacts(taken)
    if artifacts["job_ids"]:
        await connection.execute(statements.register_artifacts(artifacts))
    return accepted


async def _record_failures(
    connection: AsyncConnection, worker: str, taken: Sequence[_Line], *, events: bool
) -> None:
    failed = [line for line in taken if line.verdict.error_class is not None]
    if failed:
        await connection.execute(statements.insert_attempts(worker, _attempts(failed)))
    dead = [line for line in taken if line.verdict.status is InputStatus.DLQ]
    if dead:
        letters = _dead_letters(dead)
        await connection.execute(statements.insert_dead_letters(worker, letters))
        if events:
            await connection.execute(statements.insert_death_events(worker, letters))


def _accepted(rows: Iterable[Any]) -> dict[Key, bool]:
    """Give each input that was accepted, and whether its job ended early by it or beside it."""
    return {
        (entry_id, ordinal): ended_early
        for entry_id, ordinals, ended_early in rows
        for ordinal in ordinals
    }


def _settle_statement(lines: Sequence[_Line]) -> Bound:
    held = sorted({(line.settlement.claim.entry_id, line.settlement.claim.epoch) for line in lines})
    columns: dict[str, list[Any]] = dict(
        zip(statements.OUTCOME_COLUMNS, map(list, zip(*_runs(lines), strict=True)), strict=True)
    )
    return statements.settle_inputs(
        columns, held_ids=[id_ for id_, _ in held], held_epochs=[epoch for _, epoch in held]
    )


def _runs(lines: Sequence[_Line]) -> list[tuple[Any, ...]]:
    """Write neighbours of which the same came as one: most of what is settled is alike."""
    runs: list[tuple[Any, ...]] = []
    first = last = -1
    same: tuple[Any, ...] = ()
    for line in sorted(lines, key=_place):
        claim, input_, outcome, elapsed_ms = line.settlement
        verdict = line.verdict
        this = (
            claim.entry_id,
            claim.epoch,
            verdict.status.value,
            input_.attempts + 1,
            line.next_entry_id,
            _result(outcome),
            outcome.reused if isinstance(outcome, Succeeded) else None,
            elapsed_ms,
            verdict.error_class,
            verdict.error_message,
        )
        if this != same or input_.ordinal != last + 1:
            if same:
                runs.append((*same, first, last))
            same, first = this, input_.ordinal
        last = input_.ordinal
    runs.append((*same, first, last))
    return runs


def _place(line: _Line) -> Key:
    return line.settlement.key


def _result(outcome: Outcome) -> str | None:
    if isinstance(outcome, Succeeded) and outcome.result:
        return json.dumps(outcome.result, separators=(",", ":"), allow_nan=False)
    return None


def _follow_ups(lines: Sequence[_Line]) -> dict[str, list[Any]]:
    members: dict[int, list[_Line]] = defaultdict(list)
    for line in lines:
        if line.next_entry_id is not None:
            members[line.next_entry_id].append(line)
    ordinals = [[line.settlement.input.ordinal for line in group] for group in members.values()]
    return {
        "ids": list(members),
        "job_ids": [group[0].settlement.claim.job_id for group in members.values()],
        "firsts": [min(group) for group in ordinals],
        "lasts": [max(group) for group in ordinals],
        "counts": [len(group) for group in ordinals],
        "delays_seconds": [group[0].verdict.delay_seconds or 0.0 for group in members.values()],
        "origins": [group[0].settlement.claim.trace.traceparent for group in members.values()],
    }


def _attempts(lines: Sequence[_Line]) -> dict[str, list[Any]]:
    return {
        "job_ids": [line.settlement.claim.job_id for line in lines],
        "ordinals": [line.settlement.input.ordinal for line in lines],
        "generations": [line.settlement.input.generation for line in lines],
        "attempts": [line.attempt for line in lines],
        "statuses": [line.verdict.status.value for line in lines],
        "error_classes": [line.verdict.error_class for line in lines],
        "error_messages": [line.verdict.error_message for line in lines],
        "elapsed_ms": [line.settlement.elapsed_ms for line in lines],
        "delays_seconds": [line.verdict.delay_seconds for line in lines],
    }


def _dead_letters(lines: Sequence[_Line]) -> dict[str, list[Any]]:
    return {
        "job_ids": [line.settlement.claim.job_id for line in lines],
        "ordinals": [line.settlement.input.ordinal for line in lines],
        "attempts": [line.attempt for line in lines],
        "error_classes": [line.verdict.error_class for line in lines],
        "error_messages": [line.verdict.error_message for line in lines],
        "fingerprints": [
            fingerprint(
                line.settlement.claim.kind,
                line.verdict.error_class or "",
                line.verdict.error_message or "",
            )
            for line in lines
        ],
    }


def _artifacts(lines: Sequence[_Line]) -> dict[str, list[Any]]:
    found = [
        (line.settlement, line.settlement.outcome.artifact)
        for line in lines
        if isinstance(line.settlement.outcome, Succeeded) and line.settlement.outcome.artifact
    ]
    return {
        "job_ids": [settlement.claim.job_id for settlement, _ in found],
        "ordinals": [settlement.input.ordinal for settlement, _ in found],
        "natural_keys": [artifact.natural_key for _, artifact in found],
        "uris": [artifact.uri for _, artifact in found],
        "sizes_bytes": [artifact.size_bytes for _, artifact in found],
        "etags": [artifact.etag for _, artifact in found],
    }
