"""What process isolation costs: ``python -m tests.benchmarks.isolation``.

Start of a child, time an input adds, and memory of a child; and what the bounds of kinds without
isolation add to an input. Nothing else is started.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import psutil
import uvloop

from consumer.executor import Executor
from consumer.intake import Intake, Room
from consumer.lease import Lease
from consumer.processors.children import Children
from consumer.processors.isolated import Isolated
from consumer.processors.running import OneByOne
from tests.benchmarks.machine import describe
from tests.claims import claim_of
from tests.platform import settings_for
from tests.plugin_example.noop import NOOP, NOOP_ISOLATED, NoopProcessor

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from consumer.executor import Runner
    from infra.queue.protocol import Claim, ClaimedInput
    from schema.kinds import Kind
    from schema.outcome import Outcome

STARTS, INPUTS, ROUNDS = 5, 2_000, 5
_MIB = 1024 * 1024
_NOWHERE = "postgresql://127.0.0.1:1/nowhere"


async def measure() -> dict[str, str]:
    """Give the figures by what they are of."""
    found: dict[str, str] = {}
    settings = settings_for(
        _NOWHERE, kinds="tests.plugin_example.noop:NOOP_ISOLATED", isolated_inputs=10**9
    )
    for label, changes in (("", {}), (", with a bucket", {"bucket": "unused"})):
        async with AsyncExitStack() as stack:
            # A kind of its own each time, so that none is taken for another's idle child.
            children = await stack.enter_async_context(
                Children(settings.model_copy(update=changes))
            )
            walls, cpus, sizes = [], [], []
            for _ in range(STARTS):
                began = time.perf_counter()
                child = await children.lend(replace(NOOP_ISOLATED))
                walls.append(time.perf_counter() - began)
                process = psutil.Process(child.pid)
                cpus.append(sum(process.cpu_times()[:2]))
                sizes.append((process.memory_info().rss, process.memory_full_info().uss))
                children.take_back(child)
            found[f"start of a child{label}"] = (
                f"{statistics.median(walls):.2f} s, {statistics.median(cpus):.2f} s of CPU"
            )
            rss, uss = (statistics.median(column) / _MIB for column in zip(*sizes, strict=True))
            found[f"memory of a child{label}"] = f"{rss:.0f} MiB resident, {uss:.0f} MiB its own"
    async with Children(settings) as children:
        plain = OneByOne(NOOP, NoopProcessor(None))  # type: ignore[arg-type]
        isolated = Isolated(NOOP_ISOLATED, children)
        for name, kind, runner in (
            ("an input, bare", NOOP, plain),
            ("an input, inside the consumer, bounded", NOOP, _Bounded(plain)),
            ("an input, isolated", NOOP_ISOLATED, isolated),
        ):
            found[name] = await _best(_many(runner, kind))
    return found


class _Bounded:
    """Runs another runner in the slots of an executor, as a consumer does."""

    together = 1

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._intake = Intake(slots=1, prefetch_inputs=0)
        self._executor = Executor(
            self._intake,
            slots=1,
            stop=asyncio.Event(),
            grace_seconds=1,
            limits_seconds={},
        )

    async def run(self, claim: Claim, inputs: Sequence[ClaimedInput]) -> Sequence[Outcome]:
        """Give what came of all inputs of the claim."""
        said: list[Outcome] = []
        lease = Lease(claim, expires_at=0.0)
        self._intake.took(Room(0, 0.0), [(claim.kind, len(inputs))])
        await self._executor.run(lease, self._runner, lambda _, __, came, ___: said.extend(came))
        return said


def _many(runner: Runner, kind: Kind) -> Callable[[], Awaitable[object]]:
    claim = claim_of(kind.name, {"n": 1, "text": "abcdefghijklmnopqrstuvwxyz0123456789"})

    async def run() -> None:
        for _ in range(INPUTS):
            await asyncio.sleep(0)
            await runner.run(claim, claim.inputs)

    return run


async def _best(run: Callable[[], Awaitable[object]]) -> str:
    """Give the time of one input in the best round, after one that warms up.

    On a busy machine only the CPU time of consumer and child says something.
    """
    await run()
    times = []
    for _ in range(ROUNDS):
        before = _clocks()
        await run()
        times.append([after - earlier for after, earlier in zip(_clocks(), before, strict=True)])
    wall, here, there = (min(column) / INPUTS * 1e6 for column in zip(*times, strict=True))
    return f"{wall:.0f} µs; CPU {here:.1f} µs here, {there:.1f} µs in the child"


def _clocks() -> tuple[float, float, float]:
    """Read the clock, our CPU time and that of our children, in seconds."""
    children = psutil.Process().children()
    theirs = sum(sum(child.cpu_times()[:2]) for child in children)
    return time.perf_counter(), time.process_time(), theirs


def main() -> int:
    """Run the command."""
    for name, figure in {
        **uvloop.run(measure()),
        **{name: str(value) for name, value in describe("none").items()},
    }.items():
        sys.stdout.write(f"{name:45} {figure}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
