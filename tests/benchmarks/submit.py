"""How fast jobs are accepted over HTTP, beside what Postgres takes without us."""

from __future__ import annotations

import asyncio
import datetime as dt
import itertools
import json
import os
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import asyncpg

from schema.ids import uuid7
from tests.benchmarks import pgbench
from tests.benchmarks.contest import Rival, Sample, compete
from tests.benchmarks.http_load import post, post_all
from tests.benchmarks.jobs import clear, job
from tests.benchmarks.meter import CLIENT_CPU, peak_rss_bytes

if TYPE_CHECKING:
    from tests.benchmarks.contest import Table
    from tests.benchmarks.stage import Place, Stage

PEAK_RSS = "peak RSS MiB"
CHUNK = 100
_MIB = 1024 * 1024
# COPY has a connection for each client; so may clients have an API process each.
_API_PROCESSES = 2
_MORE = {2: ", 2 API processes"}
_JOB_COLUMNS = ("id", "key", "owner_id", "kind", "status", "max_attempts", "request_date", "total")
_ENTRY_COLUMNS = (
    "id", "type", "job_id", "owner_id", "kind", "first_ordinal", "last_ordinal", "unfinished",
)  # fmt: skip
_INPUT_COLUMNS = ("job_id", "ordinal", "body", "entry_id")
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Load:
    """How much is submitted: inputs a job, jobs a round, and how many clients share them.

    What takes long is repeated less often.
    """

    inputs: int
    jobs: int
    clients: int
    as_lines: bool = False
    most_rounds: int = 5

    def request(self, key: str, inputs: list[dict[str, Any]]) -> bytes:
        """Make the bytes of the request."""
        if not self.as_lines:
            return post("/jobs", key, json.dumps({"inputs": inputs}).encode())
        lines = "\n".join(map(json.dumps, [{}, *inputs])).encode()
        return post("/jobs", key, lines, "application/x-ndjson")


def loads(*, quick: bool) -> list[Load]:
    """Give what is submitted, the largest last: peaks of memory only grow."""
    if quick:
        few = [Load(1, 80, 8), Load(100, 40, 8), Load(10_000, 4, 2), Load(100_000, 1, 1)]
        return [*few, Load(200_000, 1, 1, as_lines=True)]
    many = [Load(1, 800, 8), Load(100, 400, 8), Load(10_000, 12, 2)]
    large = Load(100_000, 2, 1, most_rounds=3)
    return [*many, large, Load(1_000_000, 1, 1, as_lines=True, most_rounds=3)]


def export_inputs(number: int) -> list[dict[str, Any]]:
    """Give inputs of the export kind, all different."""
    return [
        {"indexKey": f"K{n}", "effectiveDate": 20240202, "asofindicator": "CLS"}
        for n in range(number)
    ]


async def contests(stage: Stage, *, rounds: int, quick: bool) -> list[Table]:
    """Submit jobs of each size."""
    place = await stage.place("submit_api", mode="outbox")
    for number in range(_API_PROCESSES):
        stage.run(place, "api", number + 1)
    key = stage.api_key(place)
    rival_place = await stage.place("submit_copy", mode="outbox")
    tables = [
        await _contest(stage, load, min(rounds, load.most_rounds), place, key, rival_place)
        for load in loads(quick=quick)
    ]
    stage.stop(place)
    return tables


async def _contest(
    stage: Stage, load: Load, rounds: int, place: Place, key: str, rival_place: Place
) -> Table:
    inputs = export_inputs(load.inputs)
    request = load.request(key, inputs)
    total = load.inputs * load.jobs

    async def over_http(processes: int) -> Sample:
        pids = place.pids[:processes]
        await clear(place)
        before = await place.meter.read(pids)
        elapsed = await post_all(
            place.api_urls[:processes], request, number=load.jobs, clients=load.clients
        )
        costs = place.meter.costs(before, await place.meter.read(pids), inputs=total)
        stored = await place.connection.fetchval("SELECT count(*) FROM input")
        assert stored == total, (stored, total)
        peaks = [peak for peak in map(peak_rss_bytes, pids) if peak]
        return Sample(total / elapsed, costs | ({PEAK_RSS: max(peaks) / _MIB} if peaks else {}))

    async def by_copy() -> Sample:
        return await _copy(rival_place, load, [json.dumps(body) for body in inputs])

    rivals = [
        Rival("Haulage, over HTTP" + _MORE.get(processes, ""), partial(over_http, processes))
        for processes in range(1, min(load.clients, _API_PROCESSES) + 1)
    ]
    rivals.append(Rival("plain COPY", by_copy))
    absent = {}
    program = stage.program("pgbench")
    name = "the same statement in pgbench"

    async def by_pgbench() -> Sample:
        assert program is not None, "checked before"
        await clear(rival_place)
        given = job(rival_place, "export", load.inputs, json.dumps(inputs), chunk_size=CHUNK)
        variables = {k: str(v) for k, v in given.head.items() if v is not None}
        variables |= {"first": "0", "until": str(load.inputs)}
        variables |= {"chunk_size": str(CHUNK), "bodies": given.bodies}
        before = await rival_place.meter.read([])
        rate, cpu = await pgbench.run(
            program, stage.folder, rival_place, pgbench.submit_script(given), variables,
            clients=load.clients, number=load.jobs // load.clients,
        )  # fmt: skip
        costs = rival_place.meter.costs(before, await rival_place.meter.read([]), inputs=total)
        return Sample(rate * load.inputs, costs | {CLIENT_CPU: cpu / total * 1000})

    if load.inputs >= COPY_FROM_INPUTS:
        absent[name] = f"from {COPY_FROM_INPUTS:,} inputs on, the product uses COPY too"
    elif program is None:
        absent[name] = "pgbench is not installed"
    else:
        rivals.append(Rival(name, by_pgbench))
    plural = "inputs" if load.inputs > 1 else "input"
    return await compete(
        f"Submit, {load.inputs:,} {plural} a job{', as lines' if load.as_lines else ''}",
        "inputs/s",
        rivals,
        rounds=rounds,
        baseline="plain COPY",
        absent=absent,
        notes=[
            f"{load.jobs} jobs a round, {load.clients} at a time, of the kind export;"
            f" rounds: {rounds}."
        ],
    )


COPY_FROM_INPUTS = 2_000


async def _copy(place: Place, load: Load, bodies: list[str]) -> Sample:
    """Copy what a submission stores into the same tables, one transaction a job."""
    await clear(place)
    jobs = [_rows(place, bodies) for _ in range(load.jobs)]
    connections = [await asyncpg.connect(place.url) for _ in range(load.clients)]
    left = iter(jobs)

    async def copy(connection: asyncpg.Connection[asyncpg.Record]) -> None:
        for head, entries, inputs in left:
            async with connection.transaction():
                for table, columns, rows in (
                    ("job", (*_JOB_COLUMNS, "correlation_id"), [head]),
                    ("outbox", (*_ENTRY_COLUMNS, "correlation_id"), entries),
                    ("input", _INPUT_COLUMNS, inputs),
                ):
                    await connection.copy_records_to_table(table, columns=columns, records=rows)

    before = await place.meter.read([os.getpid()])
    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for connection in connections:
            group.create_task(copy(connection))
    elapsed = time.perf_counter() - began
    total = load.inputs * load.jobs
    costs = place.meter.costs(before, await place.meter.read([os.getpid()]), inputs=total)
    for connection in connections:
        await connection.close()
    return Sample(total / elapsed, costs)


def _rows(place: Place, bodies: list[str]) -> tuple[tuple[Any, ...], list[Any], list[Any]]:
    job_id, total = uuid7(), len(bodies)
    trace = f"bench-{job_id.hex}"
    key = f"J20240101_{next(_numbers):06d}"
    today = dt.datetime.now(tz=dt.UTC).date()
    head = (job_id, key, place.owner_id, "export", "SUBMITTED", 5, today, total, trace)
    entries: list[Any] = []
    inputs: list[Any] = []
    for first in range(0, total, CHUNK):
        last = min(first + CHUNK, total) - 1
        entry_id = next(_numbers)
        entries.append(
            (entry_id, "inputs", job_id, place.owner_id, "export", first, last, last - first + 1,
             trace)
        )  # fmt: skip
        inputs += [(job_id, n, bodies[n], entry_id) for n in range(first, last + 1)]
    return head, entries, inputs
