"""What is kept is bounded, is tried at little cost, and once more when a drain is over."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from uuid import UUID

from consumer.keeper import MOST_JOBS, Keeper
from infra.queue.protocol import Claim
from schema.errors import Unavailable
from schema.ids import uuid7
from tests.claims import claim_of
from tests.platform import eventually


def of_a_job(job_id: UUID | None = None) -> Claim:
    return claim_of("probe", 1, job_id=job_id or uuid7())


class Database:
    """Commits what is asked for, but for the jobs that somebody holds; keeps what was asked."""

    def __init__(self) -> None:
        self.is_away = False
        self.is_held = True
        # The jobs that are held; where none is named, all.
        self.holds: set[UUID] = set()
        self.patience: list[float] = []
        self.tried: list[Claim] = []
        self.held: list[Claim] = []
        self.free: list[Claim] = []
        self.committed = 0
        self.lost = 0

    async def commit(self, batch: Sequence[Claim], lock_seconds: float) -> Sequence[Claim]:
        self.patience.append(lock_seconds)
        self.tried += batch
        if self.is_away:
            raise Unavailable("away")
        if self.is_held and (not self.holds or batch[0].job_id in self.holds):
            return batch
        self.committed += len(batch)
        return ()

    def lose(self, batch: Sequence[Claim]) -> None:
        self.lost += len(batch)

    def tell_free(self, claim: Claim, seconds: float) -> None:
        assert seconds >= 0
        self.free.append(claim)


@asynccontextmanager
async def running(database: Database) -> AsyncIterator[tuple[Keeper[Claim], asyncio.Event]]:
    given_up = asyncio.Event()
    keeper = Keeper(
        database.commit,
        database.lose,
        tell_held=database.held.append,
        tell_free=database.tell_free,
        most=2,
        lock_seconds=0.4,
        given_up=given_up,
    )
    async with asyncio.TaskGroup() as group:
        task = group.create_task(keeper.run())
        yield keeper, given_up
        task.cancel()


def put_aside(keeper: Keeper[Claim], *claims: Claim) -> None:
    for claim in claims:
        keeper.put_aside(claim, [claim])


async def test_nothing_more_is_claimed_while_too_many_jobs_are_in_other_hands() -> None:
    database = Database()
    async with running(database) as (keeper, _):
        put_aside(keeper, *[of_a_job() for _ in range(MOST_JOBS - 1)])
        assert keeper.room.is_set()
        put_aside(keeper, of_a_job())
        assert not keeper.room.is_set()
        database.is_held = False
        await eventually(keeper.room.is_set)
        await eventually(lambda: not keeper.held)
    assert database.committed == MOST_JOBS


async def test_a_round_waits_less_for_each_further_job() -> None:
    database = Database()
    async with running(database) as (keeper, _):
        put_aside(keeper, *[of_a_job() for _ in range(4)])
        await eventually(lambda: len(database.patience) >= 4)
    assert database.patience[:4] == [0.1, 0.05, 0.025, 0.0125]


async def test_whatever_is_to_come_of_a_job_waits_with_it_and_goes_commit_by_commit() -> None:
    database = Database()
    first = of_a_job()
    async with running(database) as (keeper, _):
        put_aside(keeper, first)
        for _ in range(4):
            further = of_a_job(first.job_id)
            assert keeper.takes(further, [further])
        other = of_a_job()
        assert not keeper.takes(other, [other])
        database.is_held = False
        await eventually(lambda: not keeper.held)
    assert database.committed == 5
    assert len(database.patience) >= 3
    assert database.held == database.free == [first], "each is told once"


async def test_what_is_kept_when_the_drain_is_over_is_tried_once_more_and_then_lost() -> None:
    database = Database()
    async with running(database) as (keeper, given_up):
        put_aside(keeper, of_a_job(), of_a_job())
        await eventually(lambda: len(database.patience) >= 2)
        before = len(database.patience)
        given_up.set()
        await eventually(lambda: not keeper.held)
        assert len(database.patience) >= before + 2
    assert (database.lost, database.committed) == (2, 0)
    assert not database.free


async def test_what_comes_is_tried_at_once_and_hastens_nothing_that_was_tried_in_vain() -> None:
    database, stuck, further = Database(), of_a_job(), [of_a_job() for _ in range(50)]
    database.holds = {stuck.job_id}
    async with running(database) as (keeper, _):
        keeper.add(stuck, [stuck])
        await eventually(lambda: bool(keeper.held))
        for number, claim in enumerate(further, start=1):
            keeper.add(claim, [claim])
            await until_committed(database, number)
    assert database.tried.count(stuck) < len(further) / 2
    assert database.held == [stuck]


async def test_what_waits_for_a_database_that_is_away_counts_as_in_nobodys_hands() -> None:
    database, first, second = Database(), of_a_job(), of_a_job()
    database.is_away = True
    async with running(database) as (keeper, given_up):
        keeper.add(first, [first])
        await eventually(lambda: len(database.tried) >= 2)
        assert not keeper.held
        database.is_away, database.is_held = False, False
        await until_committed(database, 1)
        database.is_away = True
        keeper.add(second, [second])
        given_up.set()
        await eventually(lambda: database.lost == 1)
    assert not database.held
    assert not database.free


async def until_committed(database: Database, many: int) -> None:
    await eventually(lambda: database.committed == many)
