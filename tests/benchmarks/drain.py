"""How fast inputs that cost nothing are drained: what the platform itself costs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from schema.chunking import ChunkBounds
from tests.benchmarks import bare, pgbench
from tests.benchmarks.contest import Rival, compete
from tests.benchmarks.jobs import drain, job, noop_bodies

if TYPE_CHECKING:
    from tests.benchmarks.contest import Sample, Table
    from tests.benchmarks.stage import Place, Stage

JOB_INPUTS = 10_000
SETTINGS = {
    "prefetch_inputs": 10_000,
    "receive_entries": 20,
    "receivers": 2,
    "concurrency": 16,
    "settle_batch": 1_000,
}
_MODES = {"outbox": "outbox", "SQS": "sqs-consumer"}
_MOST = ChunkBounds().maximum
# How inputs are processed: the kind, how many are a chunk once it was measured, and what that is
# called.
_HOW = (
    ("noop-many", _MOST, f"{_MOST:,} a call"),
    ("noop", _MOST, "one a call"),
    ("noop-hundred", 100, "100 a call"),
)
_BASELINE = "bare asyncpg loop, 1 process"


async def contest(stage: Stage, *, jobs: int, rounds: int) -> Table:
    """Drain jobs of 10,000 inputs in both modes, with one consumer and with two."""
    inputs = jobs * JOB_INPUTS
    bodies = noop_bodies(JOB_INPUTS)
    places: list[Place] = []
    rivals: list[Rival] = []

    async def product(place: Place, kind: str, chunk_size: int) -> Sample:
        given = [job(place, kind, JOB_INPUTS, bodies, chunk_size=chunk_size) for _ in range(jobs)]
        return await drain(place, given)

    for label, mode in _MODES.items():
        for consumers in (1, 2):
            name = f"drain_{label.lower()}_{consumers}"
            place = await stage.place(name, mode=mode, **SETTINGS)
            places.append(place)
            stage.run(place, "dispatcher")
            for number in range(consumers):
                stage.run(place, "consumer", number + 1)
            for kind, chunk_size, how in _HOW:
                plural = "consumers" if consumers > 1 else "consumer"
                title = f"Haulage, {label}, {consumers} {plural}, {how}"
                rivals.append(Rival(title, partial(product, place, kind, chunk_size)))
    loop_place = await bare.bare_place(stage, "drain_bare")
    for count in (1, 2):
        plural = "processes" if count > 1 else "process"
        measure = partial(bare.drain, loop_place, inputs=inputs, processes=count)
        rivals.append(Rival(f"bare asyncpg loop, {count} {plural}", measure))
    absent = {}
    program = stage.program("pgbench")
    for clients in (1, 2, 4):
        plural = "clients" if clients > 1 else "client"
        name = f"Haulage's statements in pgbench, {clients} {plural}"
        if program is None:
            absent[name] = "pgbench is not installed"
            continue
        place = await stage.place(f"drain_pgbench_{clients}", mode="outbox")
        measure = partial(
            pgbench.drain, program, stage.folder, place, inputs=inputs, clients=clients
        )
        rivals.append(Rival(name, measure))
    try:
        return await compete(
            "Drain, inputs that cost nothing",
            "inputs/s",
            rivals,
            rounds=rounds,
            baseline=_BASELINE,
            absent=absent,
            notes=[
                (
                    f"{jobs} jobs of {JOB_INPUTS:,} inputs of about 60 bytes, {_MOST:,} a chunk:"
                    " what a kind with the default bounds comes to whose inputs take no time. A"
                    " kind of 100 a call is bounded to 100 a chunk. Timed from the commit that"
                    " makes them visible until the last is settled."
                ),
                "Settings that differ from the defaults: "
                + ", ".join(f"{name} = {value}" for name, value in SETTINGS.items())
                + ".",
                "The client's CPU is that of dispatcher and consumers; deletes are part of it.",
                (
                    "The bare loop claims and completes 100 at a time, as Haulage's statements in"
                    " pgbench do. It keeps no job, no lease, no attempt and no counter."
                ),
            ],
        )
    finally:
        for place in places:
            stage.stop(place)
