"""What it costs a consumer that its collector falls silent: ``python -m tests.benchmarks.silence``.

One process drains the same inputs with a collector that answers and with one that does not, in
turn. Between two processes chance alone makes a larger difference than what is measured here.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import uvloop

from tests.benchmarks import drain
from tests.benchmarks.jobs import drain as drained
from tests.benchmarks.jobs import job, noop_bodies
from tests.benchmarks.meter import CLIENT_CPU
from tests.benchmarks.stage import Stage
from tests.benchmarks.telemetry import KINDS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from tests.benchmarks.contest import Sample
    from tests.benchmarks.stage import Place

# A silence is noted, and its end, within moments.
_IMPATIENT = {
    "OTEL_EXPORTER_OTLP_TIMEOUT": "1",
    "OTEL_BSP_SCHEDULE_DELAY": "500",
    "OTEL_METRICS_EXPORTER": "none",
}
_NOTING_SECONDS = 60.0
_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: 0\r\n\r\n"
_LENGTH = b"content-length:"


class Collector:
    """Takes everything and looks at nothing; once silent, it reads nothing and answers nothing."""

    def __init__(self) -> None:
        self.url = ""
        self._speaks = asyncio.Event()
        self._speaks.set()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Collector]:
        """Listen inside the block."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            self._speaks.set()
            server.close()

    def turn(self, *, silent: bool) -> None:
        """Fall silent, or speak again."""
        if silent:
            self._speaks.clear()
        else:
            self._speaks.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                await self._speaks.wait()
                head = await reader.readuntil(b"\r\n\r\n")
                lengths = [each for each in head.lower().split(b"\r\n") if each[:15] == _LENGTH]
                await reader.readexactly(int(lengths[0][15:]))
                await self._speaks.wait()
                writer.write(_ANSWER)
                await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            writer.close()


class Subject:
    """One consumer, and what it says of its collector."""

    def __init__(self, place: Place, collector: Collector, log: Path) -> None:
        self._place = place
        self._collector = collector
        self._log = log
        self._bodies = noop_bodies(drain.JOB_INPUTS)

    async def sample(self, kind: str, jobs: int, *, silent: bool) -> Sample:
        """Drain jobs under one condition, once the consumer has noted it."""
        self._collector.turn(silent=silent)
        # It notices with the next spans that it sends.
        await self._drained(kind, 1)
        async with asyncio.timeout(_NOTING_SECONDS):
            while self._is_away() is not silent:
                await self._drained(kind, 1)
        return await self._drained(kind, jobs)

    async def _drained(self, kind: str, jobs: int) -> Sample:
        work = [job(self._place, kind, drain.JOB_INPUTS, self._bodies) for _ in range(jobs)]
        return await drained(self._place, work)

    def _is_away(self) -> bool:
        text = self._log.read_text()
        return text.count('"telemetry.away"') > text.count('"telemetry.recovered"')


async def measure(kind: str, *, consumers: int, pairs: int, jobs: int) -> list[tuple[Sample, ...]]:
    """Give pairs of samples, the silent one first, of several consumers one after the other."""
    found: list[tuple[Sample, ...]] = []
    async with Collector().serving() as collector, Stage() as stage:
        place = await stage.place("silence", mode="outbox", **drain.SETTINGS)
        place.environment |= {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url} | _IMPATIENT
        for number in range(1, consumers + 1):
            collector.turn(silent=False)
            stage.run(place, "dispatcher")
            consumer = stage.run(place, "consumer", number)
            subject = Subject(place, collector, stage.folder / f"{consumer.name}.log")
            for _ in range(2):
                await subject.sample(kind, 1, silent=False)
            for turn in range(pairs):
                first = bool(turn % 2)
                by_silence = {
                    silent: await subject.sample(kind, jobs, silent=silent)
                    for silent in (first, not first)
                }
                found.append((by_silence[True], by_silence[False]))
            stage.stop(place)
    return found


def interval(ratios: Sequence[float], *, times: int = 2_000) -> tuple[float, float]:
    """Give where the median lies at 95 %, by drawing anew from what was measured."""
    draw = random.Random(1)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(times))
    return medians[times // 40], medians[-times // 40]


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--consumers", type=int, default=5, help="one after the other")
    parser.add_argument("--pairs", type=int, default=8, help="of samples, of each consumer")
    parser.add_argument("--jobs", type=int, default=3, help="of 10,000 inputs, in each sample")
    options = parser.parse_args()
    for kind, how in KINDS.items():
        pairs = uvloop.run(
            measure(kind, consumers=options.consumers, pairs=options.pairs, jobs=options.jobs)
        )
        ratios = [silent.figure / spoken.figure for silent, spoken in pairs]
        cpu = [silent.costs[CLIENT_CPU] / spoken.costs[CLIENT_CPU] for silent, spoken in pairs]
        for name, each in (("throughput", ratios), ("CPU", cpu)):
            low, high = interval(each)
            sys.stdout.write(
                f"{how}: silent to answering, {name}: {statistics.median(each):.3f}"
                f" ({low:.3f} to {high:.3f} at 95 %, {len(each)} pairs)\n"
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
