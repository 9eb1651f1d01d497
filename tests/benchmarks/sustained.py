"""How fast inputs are settled while as many are submitted: both at full pace, for a fixed time."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING

from sqlalchemy import text

from schema.chunking import AT_FIRST, ChunkBounds
from tests.benchmarks import bare
from tests.benchmarks.contest import Rival, Sample, compete
from tests.benchmarks.drain import SETTINGS
from tests.benchmarks.http_load import post, post_while
from tests.benchmarks.jobs import all_ended, check, clear, noop_bodies, queue_is_empty
from tests.platform import eventually

if TYPE_CHECKING:
    from tests.benchmarks.contest import Table
    from tests.benchmarks.stage import Place, Stage

SUBMITTED = "submitted/s"
SIZES = (1_000, 10_000)
# Whoever submits is faster than whoever drains: with more than so many waiting, clients pause.
MOST_WAITING = 40_000
WARM_UP_SECONDS = 1.0
_CLIENTS = 2
_LOOK_SECONDS = 0.02
_TALLY = text(
    "SELECT CAST(coalesce(sum(total), 0) AS bigint) AS submitted,"
    " CAST(coalesce(sum(succeeded), 0) AS bigint) AS settled FROM job"
)
_BASELINE = "bare asyncpg loop, 1 process"


async def contests(stage: Stage, *, rounds: int, seconds: float) -> list[Table]:
    """Submit and drain jobs of each size, in both modes."""
    places: dict[str, tuple[Place, str]] = {}
    for label, mode in (("outbox", "outbox"), ("SQS", "sqs-consumer")):
        place = await stage.place(f"sustained_{label.lower()}", mode=mode, **SETTINGS)
        for module in ("api", "dispatcher", "consumer"):
            stage.run(place, module)
        places[label] = place, stage.api_key(place)
    loop_place = await bare.bare_place(stage, "sustained_bare")
    try:
        return [
            await compete(
                f"Sustained submit and drain, {size:,} inputs a job",
                "inputs/s",
                [
                    *(
                        Rival(
                            f"Haulage, {label}, 1 consumer",
                            partial(_product, place, key, size, seconds),
                        )
                        for label, (place, key) in places.items()
                    ),
                    Rival(_BASELINE, partial(_bare, loop_place, size, seconds)),
                ],
                rounds=rounds,
                baseline=_BASELINE,
                notes=_notes(size, seconds),
            )
            for size in SIZES
        ]
    finally:
        for place, _ in places.values():
            stage.stop(place)


def _notes(size: int, seconds: float) -> list[str]:
    return [
        (
            f"Inputs settled in {seconds:g} s, after {WARM_UP_SECONDS:g} s of the same. Submitting"
            f" is the faster half: it pauses while more than {MOST_WAITING:,} inputs wait, so"
            " that what comes in is what goes out."
        ),
        (
            f"Haulage: {_CLIENTS} clients post over HTTP to one API process. A chunk, and a call,"
            f" holds {AT_FIRST} inputs at first, and up to {ChunkBounds().maximum:,} once these"
            " were measured. Settings are those of the drain."
        ),
        (
            f"The bare loop inserts {size:,} rows in one statement on one connection and claims"
            " and completes them, 100 at a time, on another, in one process without HTTP. It"
            " keeps no job, no lease, no attempt and no counter."
        ),
    ]


async def _product(place: Place, key: str, size: int, seconds: float) -> Sample:
    await clear(place)
    body = f'{{"kind":"noop-many","inputs":{noop_bodies(size)}}}'.encode()
    room, stop = asyncio.Event(), asyncio.Event()
    room.set()
    async with asyncio.TaskGroup() as group:
        request = post("/jobs", key, body)
        url = place.environment["HAULAGE_URL"]
        group.create_task(post_while(url, request, clients=_CLIENTS, room=room, stop=stop))
        group.create_task(_keep_room(place, room, stop))
        await asyncio.sleep(WARM_UP_SECONDS)
        first, before, began = await _tally(place), await place.meter.read(place.pids), _now()
        await asyncio.sleep(seconds)
        last, after, ended = await _tally(place), await place.meter.read(place.pids), _now()
        stop.set()
    await eventually(partial(all_ended, place))
    await eventually(partial(queue_is_empty, place))
    await check(place, (await _tally(place))[0])
    submitted, settled = (late - early for early, late in zip(first, last, strict=True))
    costs = place.meter.costs(before, after, inputs=settled)
    elapsed = ended - began
    return Sample(settled / elapsed, {SUBMITTED: submitted / elapsed, **costs})


async def _keep_room(place: Place, room: asyncio.Event, stop: asyncio.Event) -> None:
    while not stop.is_set():
        submitted, settled = await _tally(place)
        if submitted - settled > MOST_WAITING:
            room.clear()
        else:
            room.set()
        await asyncio.sleep(_LOOK_SECONDS)
    room.set()


async def _tally(place: Place) -> tuple[int, int]:
    (row,) = await place.database.fetch(_TALLY)
    return row.submitted, row.settled


async def _bare(place: Place, size: int, seconds: float) -> Sample:
    await place.connection.execute("TRUNCATE bare_job")
    await place.connection.execute("CHECKPOINT")
    loop = await bare.start(place, "sustain", size, MOST_WAITING)
    await asyncio.sleep(WARM_UP_SECONDS)
    first, before, began = await bare.ask(loop, "?"), await place.meter.read([loop.pid]), _now()
    await asyncio.sleep(seconds)
    last, after, ended = await bare.ask(loop, "?"), await place.meter.read([loop.pid]), _now()
    await bare.ask(loop, "stop")
    await bare.stop([loop])
    left = await place.connection.fetchval("SELECT count(*) FROM bare_job WHERE state <> 'done'")
    assert left == 0, left
    submitted, settled = (late - early for early, late in zip(first, last, strict=True))
    costs = place.meter.costs(before, after, inputs=settled)
    elapsed = ended - began
    return Sample(settled / elapsed, {SUBMITTED: submitted / elapsed, **costs})


def _now() -> float:
    return time.perf_counter()
