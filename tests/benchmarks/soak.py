"""Whether memory stays where it is: ``python -m tests.benchmarks.soak --minutes 30``.

A moderate, steady load of several kinds, with failures and retries, on API, dispatcher and consumer
in either mode or in both side by side. The resident set of each process is sampled; what it gains
an hour is told of the time after a warm-up. At the end every job must have come to its end.

Our processes look for cycles in their oldest objects seldom (``infra/process.py``): what a few
minutes gain may be what such a collection gives back, and half an hour says more.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import uvloop

from tests.benchmarks.contest import say
from tests.benchmarks.http_load import connect, get, post
from tests.benchmarks.jobs import all_ended, noop_bodies, queue_is_empty
from tests.benchmarks.machine import describe
from tests.benchmarks.stage import CHECKOUT, KINDS, Stage
from tests.platform import eventually

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.benchmarks.http_load import HttpConnection
    from tests.benchmarks.stage import Place

MODES = ("outbox", "sqs-consumer")
_MODULES = ("api", "dispatcher", "consumer")
_KINDS = f"{KINDS},tests.plugin_example.noop:NOOP_ISOLATED,tests.plugin_example.flaky:FLAKY"
_TICK_SECONDS, _SAMPLE_SECONDS = 1.0, 5.0
# Caches fill, pools open and allocators find their size.
_WARM_UP_SHARE = 0.25
_MIB = 1024 * 1024
_LEFT = """
SELECT (SELECT count(*) FROM outbox WHERE type = 'inputs') AS entries,
       (SELECT count(*) FROM attempt) AS attempts, (SELECT count(*) FROM dead_letter) AS letters,
       count(*) AS jobs, sum(total) AS inputs,
       sum(succeeded + not_found + dlq) AS ended FROM job
"""


@dataclass(slots=True)
class Track:
    """What was sampled of one process: when, its resident set, and its open files."""

    pid: int
    seconds: list[float] = field(default_factory=list)
    rss_mib: list[float] = field(default_factory=list)
    files: list[int] = field(default_factory=list)

    def sample(self, at: float) -> None:
        """Take a sample."""
        process = psutil.Process(self.pid)
        self.seconds.append(at)
        self.rss_mib.append(process.memory_info().rss / _MIB)
        self.files.append(process.num_fds())

    def summary(self) -> dict[str, float]:
        """Give size and slope after the warm-up; the slope is that of the line of best fit."""
        first = int(len(self.seconds) * _WARM_UP_SHARE)
        times, sizes = self.seconds[first:], self.rss_mib[first:]
        slope = statistics.linear_regression(times, sizes).slope
        few = max(1, len(sizes) // 10)
        return {
            "MiB after warm-up": statistics.median(sizes[:few]),
            "MiB at the end": statistics.median(sizes[-few:]),
            "peak MiB": max(self.rss_mib),
            "MiB / hour": slope * 3_600,
            "files after warm-up": self.files[first],
            "files at the end": self.files[-1],
        }


def requests(key: str) -> list[tuple[int, bytes]]:
    """Give what is posted: each with the ticks from one to the next."""

    def job(kind: str, inputs: str) -> bytes:
        return post("/jobs", key, f'{{"kind":"{kind}","inputs":{inputs}}}'.encode())

    numbers = json.dumps([{"n": number} for number in range(200)])
    return [
        (1, job("noop", noop_bodies(1))),
        (1, job("noop-many", noop_bodies(500))),
        (2, job("flaky", numbers)),
        (10, job("noop-isolated", noop_bodies(5))),
        (30, job("noop-many", noop_bodies(5_000))),
    ]


async def load(place: Place, key: str, until: float) -> None:
    """Post and read at a steady pace until then, by the loop's clock."""
    loop = asyncio.get_running_loop()
    connection = await connect(place.environment["HAULAGE_URL"])
    due, tick = loop.time(), 0
    while due < until:
        await asyncio.sleep(max(0.0, due - loop.time()))
        answers = [
            await _exchange(connection, request, 202)
            for every, request in requests(key)
            if tick % every == 0
        ]
        job = answers[-1]["jobId"]
        for path in ("/jobs?pageSize=50", f"/jobs/{job}", f"/jobs/{job}/inputs", "/dlq"):
            await _exchange(connection, get(path, key), 200)
        due, tick = due + _TICK_SECONDS, tick + 1
    connection.close()


async def _exchange(connection: HttpConnection, request: bytes, expected: int) -> dict[str, Any]:
    status, answer = await connection.exchange(request)
    assert status == expected, (status, answer[:500])
    decoded: dict[str, Any] = json.loads(answer)
    return decoded


async def watch(tracks: Mapping[str, Track], until: float) -> None:
    """Sample every process until then."""
    loop = asyncio.get_running_loop()
    began = due = loop.time()
    while due < until:
        await asyncio.sleep(max(0.0, due - loop.time()))
        for track in tracks.values():
            track.sample(loop.time() - began)
        due += _SAMPLE_SECONDS
        if int(due - began) % 60 < _SAMPLE_SECONDS:
            sizes = ", ".join(f"{name} {it.rss_mib[-1]:.0f}" for name, it in tracks.items())
            say(f"  {(due - began) / 60:.0f} min, MiB: {sizes}")


async def soak(modes: Sequence[str], minutes: float) -> dict[str, Any]:
    """Run it; give what was sampled, what it comes to, and where it ran."""
    async with Stage() as stage:
        about = describe(stage.postgres_version)
        places: dict[str, tuple[Place, str]] = {}
        tracks: dict[str, Track] = {}
        for mode in modes:
            place = await stage.place(f"soak_{mode.partition('-')[0]}", mode=mode)
            place.environment["HAULAGE_KINDS"] = _KINDS
            for module in _MODULES:
                tracks[f"{mode}, {module}"] = Track(stage.run(place, module).pid)
            places[mode] = place, stage.api_key(place)
        until = asyncio.get_running_loop().time() + minutes * 60
        async with asyncio.TaskGroup() as group:
            group.create_task(watch(tracks, until))
            for place, key in places.values():
                group.create_task(load(place, key, until))
        done = {mode: await _end(place) for mode, (place, _) in places.items()}
        for place, _ in places.values():
            stage.stop(place)
    return {
        "about": about,
        "minutes": minutes,
        "done": done,
        "processes": {
            name: {
                **track.summary(),
                "samples": list(zip(track.seconds, track.rss_mib, track.files, strict=True)),
            }
            for name, track in tracks.items()
        },
    }


async def _end(place: Place) -> dict[str, int]:
    """Wait until every job has ended; give what was done, which must be all of it."""
    began = time.perf_counter()
    await eventually(partial(all_ended, place))
    await eventually(partial(queue_is_empty, place))
    row = await place.connection.fetchrow(_LEFT)
    assert row is not None, "one row"
    assert row["entries"] == 0, row
    assert row["ended"] == row["inputs"], row
    say(f"  {place.name}: the rest ended within {time.perf_counter() - began:.1f} s")
    return {name: int(row[name]) for name in ("jobs", "inputs", "attempts", "letters")}


def as_text(found: Mapping[str, Any]) -> str:
    """Give a table for people."""
    lines = []
    for mode, row in found["done"].items():
        lines.append(
            f"{mode}: {row['jobs']:,} jobs of {row['inputs']:,} inputs in {found['minutes']:g}"
            f" minutes, {row['attempts']:,} attempts failed, {row['letters']:,} dead letters\n"
        )
    for name, figures in found["processes"].items():
        said = ", ".join(
            f"{value:.1f} {what}" if what.startswith("MiB") else f"{value:.0f} {what}"
            for what, value in figures.items()
            if what != "samples"
        )
        lines.append(f"{name}: {said}\n")
    return "".join(lines)


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--mode", action="append", choices=MODES, help="default: both")
    parser.add_argument(
        "--to", type=Path, default=CHECKOUT / ".local/benchmarks", help="the folder of soak.json"
    )
    options = parser.parse_args()
    found = uvloop.run(soak(options.mode or MODES, options.minutes))
    options.to.mkdir(parents=True, exist_ok=True)
    (options.to / "soak.json").write_text(json.dumps(found, indent=1) + "\n")
    sys.stdout.write(as_text(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
