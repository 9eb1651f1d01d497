"""Jobs of one input: what a request, a job and an entry cost when nothing is shared."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from tests.benchmarks import pgbench
from tests.benchmarks.contest import Rival, Sample, compete
from tests.benchmarks.http_load import post, post_all
from tests.benchmarks.jobs import all_ended, check, clear, job, noop_bodies, queue_is_empty
from tests.benchmarks.meter import COMMITS, POSTGRES_CPU, WAL_BYTES, cpu_seconds
from tests.platform import eventually

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.benchmarks.contest import Table
    from tests.benchmarks.stage import Place, Stage

REQUESTS = "requests/s"
# A job is an input here: a CPU second for 1,000 inputs is a millisecond a job.
POSTGRES_MS, WAL_A_JOB, COMMITS_A_JOB = "Postgres CPU ms / job", "WAL bytes / job", "commits / job"
_CLIENTS = 8
_MODULES = ("api", "dispatcher", "consumer")
_BASELINE = "the same inserts in pgbench"


async def contest(stage: Stage, *, rounds: int, jobs: int) -> Table:
    """Submit jobs of one input over HTTP, and drain them meanwhile, in both modes."""
    rivals: list[Rival] = []
    places: list[Place] = []
    for label, mode in (("outbox", "outbox"), ("SQS", "sqs-consumer")):
        place = await stage.place(f"single_{label.lower()}", mode=mode)
        places.append(place)
        for module in _MODULES:
            stage.run(place, module)
        measure = partial(_product, place, stage.api_key(place), jobs)
        rivals.append(Rival(f"Haulage, {label}, 1 consumer", measure))
    absent = {}
    program = stage.program("pgbench")
    if program is None:
        absent[_BASELINE] = "pgbench is not installed"
    else:
        place = await stage.place("single_pgbench", mode="outbox")
        rivals.append(Rival(_BASELINE, partial(_pgbench, program, stage, place, jobs)))
    try:
        return await compete(
            "Jobs of one input, submitted and drained",
            "jobs/s",
            rivals,
            rounds=rounds,
            baseline=_BASELINE,
            absent=absent,
            notes=[
                (
                    f"{jobs} jobs a round over {_CLIENTS} connections, timed from the first"
                    " request until the last job has ended. Settings are the defaults."
                ),
                (
                    "pgbench runs the statement that stores the job, over as many connections,"
                    " and drains nothing."
                ),
            ],
        )
    finally:
        for place in places:
            stage.stop(place)


async def _product(place: Place, key: str, jobs: int) -> Sample:
    await clear(place)
    request = post("/jobs", key, f'{{"kind":"noop","inputs":{noop_bodies(1)}}}'.encode())
    url = place.environment["HAULAGE_URL"]
    cpu = _cpu_seconds(place)
    before, began = await place.meter.read(place.pids), time.perf_counter()
    requests_seconds = await post_all([url], request, number=jobs, clients=_CLIENTS)
    await eventually(partial(all_ended, place))
    elapsed = time.perf_counter() - began
    await eventually(partial(queue_is_empty, place))
    after = await place.meter.read(place.pids)
    spent = {
        f"{module} CPU ms / job": (seconds - cpu[module]) / jobs * 1000
        for module, seconds in _cpu_seconds(place).items()
    }
    await check(place, jobs)
    costs = _a_job(place.meter.costs(before, after, inputs=jobs))
    return Sample(jobs / elapsed, {REQUESTS: jobs / requests_seconds, **spent, **costs})


def _cpu_seconds(place: Place) -> dict[str, float]:
    return {module: sum(map(cpu_seconds, place.pids_of(module))) for module in _MODULES}


def _a_job(costs: Mapping[str, float]) -> dict[str, float]:
    return {
        POSTGRES_MS: costs[POSTGRES_CPU],
        WAL_A_JOB: costs[WAL_BYTES],
        COMMITS_A_JOB: costs[COMMITS] / 1000,
    }


async def _pgbench(program: str, stage: Stage, place: Place, jobs: int) -> Sample:
    await clear(place)
    given = job(place, "noop", 1, noop_bodies(1))
    variables = {name: str(value) for name, value in given.head.items() if value is not None}
    variables |= {"chunk_size": str(given.chunk_size), "bodies": given.bodies}
    before = await place.meter.read([])
    rate, _ = await pgbench.run(
        program, stage.folder, place, pgbench.submit_script(given), variables,
        clients=_CLIENTS, number=jobs // _CLIENTS,
    )  # fmt: skip
    costs = place.meter.costs(before, await place.meter.read([]), inputs=jobs)
    return Sample(rate, _a_job(costs))
