"""What entries that came and went leave behind: dead rows, and what claims pay for them."""

from __future__ import annotations

import statistics
import time
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import asyncpg

from tests.benchmarks.contest import Rival, Sample, compete, say
from tests.benchmarks.ground import ENTRIES, Ground
from tests.benchmarks.latency import P99, percentile

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.benchmarks.contest import Table
    from tests.benchmarks.stage import Place, Stage

DEAD_ENTRIES, ENTRIES_MIB = "dead rows in outbox", "outbox MiB with indexes"
_JOB_ENTRIES = 1_000
_CLAIMS = 50
_QUEUE, _NAP_SECONDS = 50_000, 2
TUNED = {
    "autovacuum_vacuum_scale_factor": 0,
    "autovacuum_vacuum_threshold": 2_000,
    "autovacuum_vacuum_cost_delay": 0,
}
_MIB = 1024 * 1024
_FREE, _PINNED = "claims, nobody looks back", "claims beside an old snapshot"
_FOOTPRINT = """
SELECT n_dead_tup AS dead, pg_total_relation_size(relid) AS bytes
FROM pg_stat_user_tables WHERE relname = 'outbox'
"""


async def contest(stage: Stage, *, rounds: int, entries: int) -> Table:
    """Let entries come and go, in each round so many more, with and without an old snapshot."""
    share = entries // rounds
    free = await _ground(stage, "churn_free")
    pinned = await _ground(stage, "churn_pinned")
    async with _snapshot(pinned.place):
        table = await compete(
            f"Claims of {ENTRIES} entries while others come and go",
            "ms (p50)",
            [
                Rival(_FREE, partial(_measure, free, share)),
                Rival(_PINNED, partial(_measure, pinned, share)),
            ],
            rounds=rounds,
            baseline=_FREE,
            less_is_better=True,
            notes=[
                (
                    f"Each round lets {share:,} entries of one owner come and go, and then times"
                    f" {_CLAIMS} claims; after the last, {share * rounds:,} entries are dead and"
                    " the snapshot, REPEATABLE READ, still sees them. The ratio is the median of"
                    " the rounds, the highest figure that of the last."
                ),
            ],
        )
    after = await _measure(pinned, 0)
    table.notes.append(f"Once the snapshot has ended, claims take {after.figure:.2f} ms again.")
    return table


async def vacuum_contest(stage: Stage, *, rounds: int, seconds: float) -> Table:
    """Churn beside a long queue, vacuumed by Postgres' defaults and by settings of the table."""
    assert rounds > 0, "else nothing is measured"
    lines: dict[str, Ground] = {}
    for name, settings in (("defaults", {}), ("tuned", TUNED)):
        ground = await _ground(stage, f"vacuum_{name}")
        lines[name] = ground
        if settings:
            listed = ", ".join(f"{key} = {value}" for key, value in settings.items())
            await ground.place.connection.execute(f"ALTER TABLE outbox SET ({listed})")
        for _ in range(_QUEUE // _JOB_ENTRIES):
            await ground.submit(inputs=_JOB_ENTRIES, chunk_size=1)
        await ground.place.connection.execute("VACUUM (ANALYZE)")
    await lines["defaults"].place.connection.execute(
        f"ALTER SYSTEM SET autovacuum_naptime = '{_NAP_SECONDS}s'"
    )
    await lines["defaults"].place.connection.execute("SELECT pg_reload_conf()")

    async def measured(ground: Ground) -> Sample:
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            await churn(ground, _JOB_ENTRIES)
        return await _measure(ground, 0)

    return await compete(
        "Claims beside a long queue that churns, by how it is vacuumed",
        "ms (p50)",
        [Rival(name, partial(measured, ground)) for name, ground in lines.items()],
        rounds=rounds,
        baseline="defaults",
        less_is_better=True,
        notes=[
            (
                f"{_QUEUE:,} entries wait; in each round others come and go for {seconds:g} s, in"
                f" turns with the other side. autovacuum_naptime = {_NAP_SECONDS} s for both, so"
                " that a minute shows what an hour does."
            ),
            "tuned: " + ", ".join(f"{key} = {value}" for key, value in TUNED.items()) + ".",
        ],
    )


async def _ground(stage: Stage, name: str) -> Ground:
    place = await stage.place(name, mode="outbox")
    return Ground(place, [place.owner_id])


@asynccontextmanager
async def _snapshot(place: Place) -> AsyncIterator[None]:
    """Keep a transaction open that has looked once."""
    connection = await asyncpg.connect(place.url)
    transaction = connection.transaction(isolation="repeatable_read")
    await transaction.start()
    await connection.fetchval("SELECT count(*) FROM outbox")
    try:
        yield
    finally:
        await transaction.rollback()
        await connection.close()


async def churn(ground: Ground, entries: int) -> None:
    """Let so many entries of one input each be submitted, claimed and settled."""
    for done in range(0, entries, _JOB_ENTRIES):
        await ground.submit(inputs=_JOB_ENTRIES, chunk_size=1)
        await ground.settle(await ground.claim(_JOB_ENTRIES))
        if done % (20 * _JOB_ENTRIES) == 0:
            say(f"  {ground.place.name}: {done:,} of {entries:,} entries")


async def _measure(ground: Ground, entries: int) -> Sample:
    await churn(ground, entries)
    ground.took_ms["claim"].clear()
    for _ in range(_CLAIMS):
        await ground.submit(inputs=ENTRIES, chunk_size=1)
        await ground.settle(await ground.claim())
    took = ground.took_ms["claim"]
    row = await ground.place.connection.fetchrow(_FOOTPRINT)
    assert row is not None, "one row"
    return Sample(
        statistics.median(took),
        {
            P99: percentile(took, 0.99),
            DEAD_ENTRIES: float(row["dead"]),
            ENTRIES_MIB: row["bytes"] / _MIB,
        },
    )
