"""What telemetry costs a consumer: ``python -m tests.benchmarks.telemetry``.

The same inputs are drained without telemetry, with a page of metrics, with a collector that takes
traces and metrics, and with one that accepts connections and never answers. The rivals take turns,
and only what was measured in one round is compared.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import psutil
import uvloop

from tests.benchmarks import drain
from tests.benchmarks.contest import Rival, compete
from tests.benchmarks.jobs import drain as drained
from tests.benchmarks.jobs import job, noop_bodies
from tests.benchmarks.machine import describe
from tests.benchmarks.meter import CLIENT_CPU
from tests.benchmarks.report import as_markdown
from tests.benchmarks.stage import Stage
from tests.stubs.otlp import collecting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.benchmarks.contest import Line, Sample, Table
    from tests.benchmarks.stage import Place

_OFF = "no telemetry"
_DEFAULT = "metrics for Prometheus"
_HOLE = "a collector that never answers"
_MIB = 1024 * 1024
KINDS = {"noop-many": "100 a call", "noop": "one a call"}


@asynccontextmanager
async def black_hole() -> AsyncIterator[str]:
    """Accept connections, read nothing, answer nothing."""
    over = asyncio.Event()

    async def swallow(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await over.wait()
        writer.close()

    server = await asyncio.start_server(swallow, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        over.set()
        server.close()


async def measure(*, jobs: int, rounds: int) -> tuple[Table, dict[str, object], dict[str, str]]:
    """Run the contest; give it, where it came about, and how memory went."""
    bodies = noop_bodies(drain.JOB_INPUTS)
    rivals: list[Rival] = []
    memory: dict[str, list[float]] = {}

    async def sample(name: str, place: Place, kind: str) -> Sample:
        taken = await drained(
            place, [job(place, kind, drain.JOB_INPUTS, bodies) for _ in range(jobs)]
        )
        consumer = place.pids[1]
        memory.setdefault(name, []).append(psutil.Process(consumer).memory_info().rss / _MIB)
        return taken

    with collecting() as collector:
        async with black_hole() as hole, Stage() as stage:
            environments = {
                _OFF: {"OTEL_SDK_DISABLED": "true"},
                _DEFAULT: {},
                "a collector": {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url},
                _HOLE: {"OTEL_EXPORTER_OTLP_ENDPOINT": hole},
            }
            for number, (name, environment) in enumerate(environments.items()):
                place = await stage.place(f"telemetry_{number}", mode="outbox", **drain.SETTINGS)
                place.environment |= environment
                stage.run(place, "dispatcher")
                stage.run(place, "consumer")
                for kind, how in KINDS.items():
                    title = f"{name}, {how}"
                    rivals.append(Rival(title, partial(sample, name, place, kind)))
            table = await compete(
                "Drain with telemetry, outbox mode, 1 consumer",
                "inputs/s",
                rivals,
                rounds=rounds,
                baseline=f"{_OFF}, 100 a call",
                notes=[f"{jobs} jobs of {drain.JOB_INPUTS:,} inputs, 100 a chunk."],
            )
            about = describe(stage.postgres_version)
    return table, about, {name: _growth(sizes) for name, sizes in memory.items()}


def _cpu_ratio(line: Line, base: Line) -> float:
    """Give the median of the ratios of CPU time in the same round; a busy machine blurs it less."""
    pairs = zip(line.samples, base.samples, strict=True)
    return statistics.median(
        mine.costs[CLIENT_CPU] / theirs.costs[CLIENT_CPU] for mine, theirs in pairs
    )


def _compared(line: Line, base: Line) -> str:
    return (
        f"{line.name}: {line.ratio_to(base):.3f} of the throughput and"
        f" {_cpu_ratio(line, base):.3f} of the CPU of {base.name}\n"
    )


def _growth(sizes_mib: list[float]) -> str:
    """Compare the resident set of the first rounds, the first of all apart, with the last."""
    third = max(1, (len(sizes_mib) - 1) // 3)
    first, last = sizes_mib[1 : 1 + third] or sizes_mib, sizes_mib[-third:]
    return f"{statistics.median(first):.1f} MiB, then {statistics.median(last):.1f} MiB"


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=3, help="of 10,000 inputs, in each sample")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    table, about, memory = uvloop.run(measure(jobs=options.jobs, rounds=options.rounds))
    sys.stdout.write(as_markdown([table], about))
    lines = {line.name: line for line in table.lines}
    for how in KINDS.values():
        for name, line in lines.items():
            if name.endswith(how) and not name.startswith(_OFF):
                sys.stdout.write(_compared(line, lines[f"{_OFF}, {how}"]))
        # What a collector that is away costs whoever set one.
        sys.stdout.write(_compared(lines[f"{_HOLE}, {how}"], lines[f"{_DEFAULT}, {how}"]))
    for name, sizes in memory.items():
        sys.stdout.write(f"resident, {name}: {sizes}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
