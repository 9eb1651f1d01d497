"""The product's own statements under pgbench: what Postgres gives when the client is C.

SQLAlchemy's ``text()`` and pgbench name parameters alike, so the statements run as they are;
only the arrays of outcomes, which a script cannot hold, are made by the server.
"""

from __future__ import annotations

import asyncio
import re
import resource
from typing import TYPE_CHECKING

from schema.statements.claim import claim_ready
from schema.statements.settle import settle_inputs
from schema.statements.submit import insert_job
from schema.statements.turns import FIRST_TURN
from tests.benchmarks.contest import Sample
from tests.benchmarks.jobs import clear, job, load, noop_bodies
from tests.benchmarks.meter import CLIENT_CPU

if TYPE_CHECKING:
    from pathlib import Path

    from tests.benchmarks.jobs import Job
    from tests.benchmarks.stage import Place

_TPS = re.compile(r"tps = ([\d.]+) \(without initial connection time\)")
_SETTLE_SECONDS = 0.3
_ORDINALS = "CAST(:ordinals AS integer[])"
# A chunk is one run: all of it succeeded.
_OUTCOMES = {
    "entry_ids": "ARRAY[CAST(:entry_id AS bigint)]",
    "epochs": "ARRAY[CAST(:epoch AS integer)]",
    "statuses": "ARRAY['SUCCEEDED']",
    "attempts": "ARRAY[1::smallint]",
    "next_entry_ids": "ARRAY[NULL::bigint]",
    "results": "ARRAY[NULL::jsonb]",
    "reused": "ARRAY[NULL::boolean]",
    "elapsed_ms": "ARRAY[0]",
    "error_classes": "ARRAY[NULL::text]",
    "error_messages": "ARRAY[NULL::text]",
    "first_ordinals": f"ARRAY[({_ORDINALS})[1]]",
    "last_ordinals": f"ARRAY[({_ORDINALS})[cardinality({_ORDINALS})]]",
    "held_ids": "ARRAY[CAST(:entry_id AS bigint)]",
    "held_epochs": "ARRAY[CAST(:epoch AS integer)]",
}
_NO_OUTCOMES: dict[str, list[object]] = {
    name: [] for name in _OUTCOMES if not name.startswith("held")
}


def drain_script() -> str:
    """Give a transaction that leases one chunk and settles all of it."""
    claim = claim_ready("pgbench", 30.0, kinds=["noop"], most=1).text
    settle = settle_inputs(_NO_OUTCOMES, held_ids=[], held_epochs=[]).text
    for name, array in _OUTCOMES.items():
        settle = re.sub(rf"CAST\(:{name} AS \w+\[\]\)", array, settle)
    return f"{_one_line(claim)} \\gset\n{_one_line(settle)};\n"


def submit_script(given: Job) -> str:
    """Give a transaction that stores one job under a new id."""
    statement = insert_job(given.head, chunk_size=given.chunk_size, bodies=given.bodies).text
    return _one_line(statement.replace("CAST(:id AS uuid)", "gen_random_uuid()")) + ";\n"


async def drain(program: str, folder: Path, place: Place, *, inputs: int, clients: int) -> Sample:
    """Measure leasing and settling chunk by chunk, without Python and without a queue: inputs/s."""
    await clear(place)
    size = 10_000
    bodies = noop_bodies(size)
    before, _ = await load(place, [job(place, "noop", size, bodies) for _ in range(inputs // size)])
    # A few chunks are left over, so that no client ever finds none.
    transactions = inputs // 100 * 9 // 10 // clients
    variables = {
        "worker": "pgbench",
        "lease_seconds": "30",
        "kinds": "{noop}",
        "shunned": "{}",
        "lock_timeout": "0",
        "most": "1",
        # pgbench takes no empty value: any that comes before the kind.
        "after_kind": "a",
        "after_owner": str(FIRST_TURN.owner_id),
    }
    rate, cpu = await run(
        program, folder, place, drain_script(), variables, clients=clients, number=transactions
    )
    done = transactions * clients * 100
    # A session's CPU is its server's once it has ended.
    await asyncio.sleep(_SETTLE_SECONDS)
    costs = place.meter.costs(before, await place.meter.read([]), inputs=done)
    settled = await place.connection.fetchval("SELECT sum(succeeded) FROM job")
    assert settled == done, (settled, done)
    return Sample(rate * 100, costs | {CLIENT_CPU: cpu / (done / 1000)})


async def run(
    program: str,
    folder: Path,
    place: Place,
    script: str,
    variables: dict[str, str],
    *,
    clients: int,
    number: int,
) -> tuple[float, float]:
    """Run a script; give transactions per second and the CPU seconds of pgbench itself."""
    path = folder / f"{place.name}.sql"
    path.write_text(script)
    before = _children_seconds()
    command = [program, "--no-vacuum", "--protocol=prepared", f"--client={clients}"]
    command += [f"--transactions={number}", f"--file={path}"]
    command += [f"--define={name}={value}" for name, value in variables.items()]
    process = await asyncio.create_subprocess_exec(
        *command, place.url, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    found = _TPS.search(output.decode(errors="replace"))
    assert process.returncode == 0, output.decode(errors="replace")[-2000:]
    assert found, output.decode(errors="replace")[-2000:]
    return float(found[1]), _children_seconds() - before


def _children_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _one_line(statement: str) -> str:
    # Comments would swallow the rest of the line.
    lines = (line.partition("--")[0].strip() for line in statement.splitlines())
    return " ".join(line for line in lines if line)
