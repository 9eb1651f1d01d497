"""Measures the bare loop, as processes of its own."""

from __future__ import annotations

import asyncio
import sys
import time
from asyncio.subprocess import PIPE
from typing import TYPE_CHECKING

from tests.benchmarks.bare_loop import TABLE
from tests.benchmarks.contest import Sample
from tests.benchmarks.stage import CHECKOUT

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Sequence

    from tests.benchmarks.stage import Place, Stage

_FILL = """
INSERT INTO bare_job (body)
SELECT jsonb_build_object('n', n, 'text', 'abcdefghijklmnopqrstuvwxyz0123456789')
FROM generate_series(1, $1::integer) AS n
"""


async def bare_place(stage: Stage, name: str) -> Place:
    """Make a database with the rival's table."""
    place = await stage.place(name, mode="outbox")
    await place.connection.execute(TABLE)
    return place


async def start(place: Place, mode: str, *numbers: int) -> Process:
    """Start one loop; return when it is ready."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.benchmarks.bare_loop", place.url, mode, *map(str, numbers),
        stdin=PIPE, stdout=PIPE, cwd=CHECKOUT,
    )  # fmt: skip
    assert process.stdout is not None, "piped"
    assert await process.stdout.readline() == b"ready\n"
    return process


async def stop(loops: Sequence[Process]) -> None:
    """End loops by ending their input."""
    for loop in loops:
        assert loop.stdin is not None, "piped"
        loop.stdin.close()
        await loop.wait()


async def ask(loop: Process, line: str) -> list[int]:
    """Send a line; give the numbers that come back."""
    assert loop.stdin is not None, "piped"
    assert loop.stdout is not None, "piped"
    loop.stdin.write(f"{line}\n".encode())
    return [int(number) for number in (await loop.stdout.readline()).split()]


async def drain(place: Place, *, inputs: int, processes: int) -> Sample:
    """Measure from the start signal until the last loop finds nothing left."""
    await place.connection.execute("TRUNCATE bare_job")
    await place.connection.execute("CHECKPOINT")
    await place.connection.execute(_FILL, inputs)
    await place.connection.execute("ANALYZE bare_job")
    loops = [await start(place, "drain") for _ in range(processes)]
    pids = [loop.pid for loop in loops]
    before = await place.meter.read(pids)
    began = time.perf_counter()
    for loop in loops:
        assert loop.stdin is not None, "piped"
        loop.stdin.write(b"go\n")
    done = 0
    for loop in loops:
        assert loop.stdout is not None, "piped"
        done += int(await loop.stdout.readline())
    elapsed = time.perf_counter() - began
    after = await place.meter.read(pids)
    await stop(loops)
    assert done == inputs, (done, inputs)
    return Sample(inputs / elapsed, place.meter.costs(before, after, inputs=inputs))
