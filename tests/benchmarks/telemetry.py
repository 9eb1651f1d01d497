"""What telemetry costs a consumer: ``python -m tests.benchmarks.telemetry``.

The same inputs are drained without telemetry, with a page of metrics as by default, with a
collector that takes traces and metrics, and with one that accepts connections and never answers.
The rivals take turns, and only what was measured in one round is compared. The default is there
twice: what it differs by from itself is what differs by chance.
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
from tests.platform import eventually
from tests.stubs.otlp import collecting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.benchmarks.contest import Line, Sample, Table
    from tests.benchmarks.stage import Place

_OFF = "no telemetry"
_DEFAULT = "metrics for Prometheus"
_CONTROL = "the same once more"
_HOLE = "a collector that never answers"
# It is noted as away after a second, not ten: what it costs from then on is the question.
_IMPATIENT = {"OTEL_EXPORTER_OTLP_TIMEOUT": "1", "OTEL_BSP_SCHEDULE_DELAY": "500"}
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


class Turns:
    """A consumer of its own for each round: what one has by luck, such as the layout of its memory,
    differs by more than what is measured here.
    """

    def __init__(self, stage: Stage, place: Place, *, is_away: bool) -> None:
        self._stage = stage
        self._place = place
        self._is_away = is_away
        self._bodies = noop_bodies(drain.JOB_INPUTS)
        self._left = 0

    async def sample(self, kind: str, jobs: int) -> Sample:
        """Drain jobs of a kind; each kind once, then the consumer is another one."""
        if not self._left:
            await self._begin()
        self._left -= 1
        return await self._drain(kind, jobs)

    async def _begin(self) -> None:
        self._stage.stop(self._place)
        self._stage.run(self._place, "dispatcher")
        consumer = self._stage.run(self._place, "consumer")
        self._left = len(KINDS)
        for kind in KINDS:
            await self._drain(kind, 1)
        log = self._stage.folder / f"{consumer.name}.log"
        if self._is_away:
            await eventually(lambda: "telemetry.away" in log.read_text())

    async def _drain(self, kind: str, jobs: int) -> Sample:
        work = [job(self._place, kind, drain.JOB_INPUTS, self._bodies) for _ in range(jobs)]
        return await drained(self._place, work)

    async def resident_mib(self, jobs: int) -> list[float]:
        """Give the resident set of one consumer after each of so many jobs, and end it."""
        await self._begin()
        (consumer,) = self._place.pids_of("consumer")
        sizes: list[float] = []
        for number in range(jobs):
            await self._drain([*KINDS][number % len(KINDS)], 1)
            sizes.append(psutil.Process(consumer).memory_info().rss / _MIB)
        self.end()
        return sizes

    def end(self) -> None:
        """End the processes."""
        self._stage.stop(self._place)
        self._left = 0


async def measure(
    *, jobs: int, rounds: int, growth_jobs: int
) -> tuple[Table, dict[str, object], dict[str, str]]:
    """Run the contest; give it, where it came about, and how memory went."""
    rivals: list[Rival] = []
    turns: dict[str, Turns] = {}
    with collecting() as collector:
        async with black_hole() as hole, Stage() as stage:
            environments = {
                _OFF: {"OTEL_SDK_DISABLED": "true"},
                _DEFAULT: {},
                _CONTROL: {},
                "a collector": {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url},
                _HOLE: {"OTEL_EXPORTER_OTLP_ENDPOINT": hole} | _IMPATIENT,
            }
            for number, (name, environment) in enumerate(environments.items()):
                place = await stage.place(f"telemetry_{number}", mode="outbox", **drain.SETTINGS)
                place.environment |= environment
                turns[name] = Turns(stage, place, is_away=name == _HOLE)
                for kind, how in KINDS.items():
                    rivals.append(Rival(f"{name}, {how}", partial(turns[name].sample, kind, jobs)))
            table = await compete(
                "Drain with telemetry, outbox mode, 1 consumer",
                "inputs/s",
                rivals,
                rounds=rounds,
                baseline=f"{_DEFAULT}, 100 a call",
                notes=[
                    f"{jobs} jobs of {drain.JOB_INPUTS:,} inputs, 100 a chunk; a new consumer in"
                    " each round."
                ],
            )
            about = describe(stage.postgres_version)
            for each in turns.values():
                each.end()
            sizes = {name: await turns[name].resident_mib(growth_jobs) for name in (_OFF, _HOLE)}
    return table, about, {name: _growth(of_one) for name, of_one in sizes.items()}


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
    """Compare the resident set of the first third, but for the first jobs, with the last."""
    third = max(1, len(sizes_mib) // 3)
    first, last = sizes_mib[third // 2 : third + third // 2], sizes_mib[-third:]
    return f"{statistics.median(first):.1f} MiB, then {statistics.median(last):.1f} MiB"


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=3, help="of 10,000 inputs, in each sample")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--growth-jobs", type=int, default=60, help="while memory is watched")
    options = parser.parse_args()
    table, about, memory = uvloop.run(
        measure(jobs=options.jobs, rounds=options.rounds, growth_jobs=options.growth_jobs)
    )
    sys.stdout.write(as_markdown([table], about))
    lines = {line.name: line for line in table.lines}
    for how in KINDS.values():
        for name, line in lines.items():
            if name.endswith(how) and not name.startswith(_DEFAULT):
                sys.stdout.write(_compared(line, lines[f"{_DEFAULT}, {how}"]))
    for name, sizes in memory.items():
        sys.stdout.write(f"resident, {name}: {sizes}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
