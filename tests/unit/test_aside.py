"""What is put aside is bounded, is tried at little cost, and once more when a drain is over."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from uuid import UUID

from consumer.aside import MOST_JOBS, Aside
from consumer.lease import Lease
from infra.settle import Settlement
from schema.ids import uuid7
from schema.outcome import Succeeded
from tests.claims import claim_of
from tests.platform import eventually

Waiting = tuple[Lease, Settlement]


def outcome_of(job_id: UUID | None = None) -> Waiting:
    claim = claim_of("probe", 1, job_id=job_id or uuid7())
    return Lease(claim, 30.0), Settlement(claim, claim.inputs[0], Succeeded(), 1)


class Database:
    """Commits what is asked for, but for the jobs that somebody holds; keeps what was asked."""

    def __init__(self) -> None:
        self.is_held = True
        self.patience: list[float] = []
        self.committed = 0
        self.lost = 0

    async def commit(self, batch: Sequence[Waiting], lock_seconds: float) -> Sequence[Waiting]:
        self.patience.append(lock_seconds)
        if self.is_held:
            return batch
        self.committed += len(batch)
        return ()

    def lose(self, batch: Sequence[Waiting]) -> None:
        self.lost += len(batch)


@asynccontextmanager
async def running(database: Database) -> AsyncIterator[tuple[Aside, asyncio.Event]]:
    given_up = asyncio.Event()
    aside = Aside(database.commit, database.lose, most=2, lock_seconds=0.4, given_up=given_up)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(aside.run())
        yield aside, given_up
        task.cancel()


async def test_nothing_more_is_claimed_while_too_many_jobs_are_in_other_hands() -> None:
    database = Database()
    async with running(database) as (aside, _):
        aside.put([outcome_of() for _ in range(MOST_JOBS - 1)])
        assert aside.room.is_set()
        aside.put([outcome_of()])
        assert not aside.room.is_set()
        database.is_held = False
        await eventually(aside.room.is_set)
        await eventually(lambda: not aside.jobs)
    assert database.committed == MOST_JOBS


async def test_a_round_waits_less_for_each_further_job() -> None:
    database = Database()
    async with running(database) as (aside, _):
        aside.put([outcome_of() for _ in range(4)])
        await eventually(lambda: len(database.patience) >= 4)
    assert database.patience[:4] == [0.1, 0.05, 0.025, 0.0125]


async def test_whatever_is_to_come_of_a_job_waits_with_it_and_goes_commit_by_commit() -> None:
    database = Database()
    first = outcome_of()
    job_id = first[0].claim.job_id
    async with running(database) as (aside, _):
        aside.put([first])
        for _ in range(4):
            lease, settlement = outcome_of(job_id)
            assert aside.takes(lease, [settlement])
        lease, settlement = outcome_of()
        assert not aside.takes(lease, [settlement])
        database.is_held = False
        await eventually(lambda: not aside.jobs)
    assert database.committed == 5
    assert len(database.patience) >= 3


async def test_what_is_aside_when_the_drain_is_over_is_tried_once_more_and_then_lost() -> None:
    database = Database()
    async with running(database) as (aside, given_up):
        aside.put([outcome_of(), outcome_of()])
        await eventually(lambda: len(database.patience) >= 2)
        before = len(database.patience)
        given_up.set()
        await eventually(lambda: not aside.jobs)
        assert len(database.patience) >= before + 2
    assert (database.lost, database.committed) == (2, 0)
