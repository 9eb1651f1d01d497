"""What consumers measure of a kind decides how many of its inputs share a chunk."""

import asyncio

import httpx
import pytest
from sqlalchemy import text

from consumer.pace import Paces
from infra.database import Database
from infra.wakeup import Listener
from localstack.ports import free_port
from tests.deliveries import open_delivery
from tests.integration.api.conftest import notes
from tests.platform import KIND, Platform, Recorder, settings_for


async def paces_of(database: Database) -> dict[str, float]:
    rows = await database.fetch(text("SELECT kind, input_ms FROM kind_pace"))
    return {row.kind: row.input_ms for row in rows}


@pytest.mark.parametrize(
    ("was_ms", "is_ms", "chunks"), [(1.0, 1_600.0, 25), (1_600.0, 300.0, 5), (1_600.0, 0.2, 1)]
)
async def test_chunks_of_the_next_submission_follow_a_kind_that_became_slow_or_fast(
    client: httpx.AsyncClient, database: Database, was_ms: float, is_ms: float, chunks: int
) -> None:
    earlier, now = Paces(database), Paces(database)
    earlier.note("note", elapsed_ms=was_ms, inputs=1)
    await earlier.write_once()
    for _ in range(30):
        now.note("note", elapsed_ms=is_ms * 10, inputs=10)
        await now.write_once()
    assert (await paces_of(database))["note"] == pytest.approx(is_ms, rel=0.01)
    await client.post("/jobs", json=notes(25))
    ((made,),) = await database.fetch(text("SELECT count(*) FROM outbox"))
    assert made == chunks


async def test_consumers_side_by_side_blend_what_they_measured(database: Database) -> None:
    one, other = Paces(database), Paces(database)
    one.note("note", elapsed_ms=100, inputs=1)
    one.note("export", elapsed_ms=5, inputs=1)
    other.note("note", elapsed_ms=900, inputs=3)
    await asyncio.gather(one.write_once(), other.write_once())
    assert await paces_of(database) == {"note": 200, "export": 5}


async def test_a_kind_that_was_not_measured_since_keeps_its_pace(database: Database) -> None:
    paces, other = Paces(database), Paces(database)
    paces.note("note", elapsed_ms=100, inputs=1)
    await paces.write_once()
    other.note("note", elapsed_ms=300, inputs=1)
    await other.write_once()
    await paces.write_once()
    assert await paces_of(database) == {"note": 200}


async def test_what_is_shared_is_written_soon_until_it_is_near_what_was_measured(
    database: Database,
) -> None:
    earlier, now = Paces(database), Paces(database)
    earlier.note("note", elapsed_ms=1_000, inputs=1)
    assert earlier.is_far_off(), "nobody knows it yet"
    await earlier.write_once()
    earlier.note("note", elapsed_ms=1_300, inputs=1)
    assert not earlier.is_far_off()
    shared: list[float] = []
    for _ in range(20):
        now.note("note", elapsed_ms=100, inputs=100)
        if not now.is_far_off():
            break
        await now.write_once()
        shared += (await paces_of(database)).values()
    assert shared[:3] == pytest.approx([500.5, 250.75, 125.875])
    assert shared[-1] <= 2 < shared[-2]


async def test_what_took_no_time_at_all_still_has_a_pace(database: Database) -> None:
    paces = Paces(database)
    paces.note("note", elapsed_ms=0, inputs=1)
    await paces.write_once()
    assert await paces_of(database) == {"note": 0.001}
    paces.note("note", elapsed_ms=0, inputs=1)
    assert not paces.is_far_off()


async def test_a_database_that_is_away_costs_a_write_and_no_more() -> None:
    settings = settings_for(f"postgresql://nobody@127.0.0.1:{free_port()}/none")
    async with Database.from_settings(settings, name="test") as away:
        paces = Paces(away)
        paces.note("note", elapsed_ms=10, inputs=1)
        await paces.write_once()


async def test_a_consumer_writes_the_pace_of_its_kinds_when_it_has_drained(
    platform: Platform, database: Database, database_url: str
) -> None:
    await platform.prepare()
    job_id = await platform.submit(20)
    settings = settings_for(database_url)
    listener = Listener(settings, name="test")
    async with open_delivery("outbox", settings, database, listener) as delivery:
        async with delivery.consuming(Recorder()):
            await platform.until(job_id, "COMPLETED")
    assert (await paces_of(database)).keys() == {KIND}
