"""Flat as it grows: ``python -m tests.benchmarks.grown`` (``make bench-grown``).

The same statements and requests on a database with millions of finished inputs and on one with next
to none, in turns; and claims after entries have come and gone. Writes docs/benchmarks-grown.md,
with its JSON and picture.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop

from tests.benchmarks import churn
from tests.benchmarks.contest import Line, Sample, Table, say
from tests.benchmarks.ground import ENTRIES, Ground
from tests.benchmarks.growth import CHUNK, OWNERS, Size, fill
from tests.benchmarks.http_load import connect, get
from tests.benchmarks.latency import P99, percentile
from tests.benchmarks.machine import describe
from tests.benchmarks.report import as_document, as_markdown, number, write
from tests.benchmarks.stage import CHECKOUT, Stage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Row

_COMMAND = ".venv/bin/python -m tests.benchmarks.grown"
_AGAIN = (
    "All of it again: `make bench-grown`. Smaller, and not over these figures:"
    f" `{_COMMAND} --finished 1000000 --waiting 100000 --rounds 1 --to .local/benchmarks`."
)
_NAME = "benchmarks-grown"
_FLAT = 1.5
_EMPTY, _GROWN = "next to empty", "grown"
_CHURNED_A_SECOND = 4_000
# Enough that every page is full and every owner has its turn, and no more.
_LEAST = Size(finished=60_000, waiting=20_000)
_KEYS = """
SELECT key FROM job WHERE owner_id = $1 AND finished_at IS NOT NULL ORDER BY random() LIMIT 200
"""


class Reader:
    """Reads a ground's jobs over HTTP, as their owner does."""

    def __init__(self, key: str, jobs: Sequence[str]) -> None:
        self._key = key
        self._jobs = jobs

    async def read(self, ground: Ground) -> None:
        """Send each request once, about a job that is chosen at random."""
        # The API closes what is idle, as it may be between two samples.
        connection = await connect(ground.place.environment["HAULAGE_URL"])
        job = random.choice(self._jobs)
        for name, path in {
            "GET /jobs/{id}": f"/jobs/{job}",
            "GET /jobs": "/jobs?pageSize=20",
            "GET /jobs?status=FAILED": "/jobs?status=FAILED&pageSize=20",
            "GET /jobs/{id}/inputs": f"/jobs/{job}/inputs?pageSize=100",
            "GET /dlq": "/dlq?pageSize=20",
        }.items():
            began = time.perf_counter()
            status, answer = await connection.exchange(get(path, self._key))
            ground.took_ms[name].append((time.perf_counter() - began) * 1000)
            assert status == 200, (status, answer[:500])
        connection.close()


async def measure(
    size: Size, *, rounds: int, samples: int, churned: int
) -> tuple[str, dict[str, object]]:
    """Fill, measure, and give the page and its JSON."""
    async with Stage() as stage:
        about = describe(stage.postgres_version)
        size.check_room(stage.folder)
        sides: list[tuple[Ground, Reader]] = []
        for name, rows in (("grown_empty", _LEAST), ("grown_full", size)):
            place = await stage.place(name, mode="outbox")
            began = time.perf_counter()
            ground = Ground(place, await fill(place, rows))
            say(f"  {name} was filled in {time.perf_counter() - began:.0f} s")
            stage.run(place, "api")
            keys = [row["key"] for row in await place.connection.fetch(_KEYS, place.owner_id)]
            sides.append((ground, Reader(stage.api_key(place), keys)))
        rounds_of = [await _round(sides, samples) for _ in range(rounds)]
        for ground, _ in sides:
            stage.stop(ground.place)
        steps = _tables(rounds_of)
        lead = _grid(steps, size, samples)
        churns = []
        if churned:
            churns.append(await churn.contest(stage, rounds=rounds, entries=churned))
            seconds = churned / _CHURNED_A_SECOND / rounds
            churns.append(await churn.vacuum_contest(stage, rounds=rounds, seconds=seconds))
    page = as_markdown(churns, about, again=_AGAIN, picture=f"{_NAME}.svg", lead=lead)
    return page, as_document([*steps, *churns], about)


async def _round(
    sides: Sequence[tuple[Ground, Reader]], samples: int
) -> list[Mapping[str, Sequence[float]]]:
    """Take samples of both sides in turns; give the milliseconds of each step by side."""
    for ground, _ in sides:
        ground.took_ms.clear()
    for turn in range(samples):
        for ground, reader in sides if turn % 2 else reversed(sides):
            # Two rounds of work take as many entries as two jobs bring.
            for work in (ground.claim, partial(_by_message, ground)):
                await ground.submit(inputs=ENTRIES * CHUNK, chunk_size=CHUNK)
                await ground.settle(await work())
            await reader.read(ground)
    for ground, _ in sides:
        steps = (f"{name} {statistics.median(took):.1f}" for name, took in ground.took_ms.items())
        say(f"  {ground.place.name}, ms: {', '.join(steps)}")
    return [dict(ground.took_ms) for ground, _ in sides]


async def _by_message(ground: Ground) -> Sequence[Row[Any]]:
    return await ground.claim_by_id(await ground.relay())


def _tables(rounds_of: Sequence[Sequence[Mapping[str, Sequence[float]]]]) -> list[Table]:
    """Give a table a step, of a line a side."""
    tables = []
    for step in rounds_of[0][0]:
        lines = [Line(_EMPTY), Line(_GROWN)]
        for both in rounds_of:
            for line, took in zip(lines, both, strict=True):
                figure = statistics.median(took[step])
                line.samples.append(Sample(figure, {P99: percentile(took[step], 0.99)}))
        tables.append(Table(step, "ms (p50)", lines, [], _EMPTY, less_is_better=True))
    return tables


def _ratios(table: Table) -> tuple[float, float]:
    """Give how much more it costs in a grown database: the median, and the slowest in a hundred."""
    empty, grown = table.lines
    tails = (
        late.costs[P99] / early.costs[P99]
        for early, late in zip(empty.samples, grown.samples, strict=True)
    )
    return grown.ratio_to(empty), statistics.median(tails)


def _grid(tables: Sequence[Table], size: Size, samples: int) -> list[str]:
    """Give all steps as one table."""
    rows = ["## Flat as it grows", ""]
    columns = [f"{side}, {figure}" for side in (_EMPTY, _GROWN) for figure in ("p50 ms", "p99 ms")]
    rows += [f"| | {' | '.join(columns)} | ratio of p50 | ratio of p99 |", f"|---|{'---:|' * 6}"]
    steep: list[str] = []
    for table in tables:
        cells = [number(value) for line in table.lines for value in (line.median, line.cost(P99))]
        ratios = _ratios(table)
        steep += [table.title] if max(ratios) > _FLAT else []
        rows.append(f"| {table.title} | {' | '.join([*cells, *map('{:.2f}'.format, ratios)])} |")
    return [
        *rows,
        "",
        (
            f"- {size.finished:,} inputs have finished and {size.waiting:,} wait, against"
            f" {_LEAST.finished:,} and {_LEAST.waiting:,}, of {OWNERS} owners each; of the finished"
            f" ones, one in a hundred is a dead letter. {samples} samples of each step a round, the"
            " sides in turns; less is better."
        ),
        (
            f"- Work is done by {ENTRIES} entries of {CHUNK} inputs at a time, statement by"
            " statement, as dispatcher and consumer do it; reads go over HTTP, and ask for 20 jobs"
            " or letters, or for 100 inputs."
        ),
        (
            f"- Flat is what costs {_FLAT} times as much at most, by both ratios; what is not:"
            f" {', '.join(steep) or 'nothing'}."
        ),
        "",
    ]


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog=_COMMAND, description=__doc__)
    parser.add_argument("--finished", type=int, default=10_000_000, help="inputs that have ended")
    parser.add_argument("--waiting", type=int, default=1_000_000, help="inputs that wait")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--samples", type=int, default=100, help="of each step, a round")
    parser.add_argument("--churn", type=int, default=200_000, help="entries that come and go")
    parser.add_argument("--to", type=Path, default=CHECKOUT / "docs", help="the folder to write to")
    options = parser.parse_args()
    size = Size(options.finished, options.waiting)
    page, document = uvloop.run(
        measure(size, rounds=options.rounds, samples=options.samples, churned=options.churn)
    )
    write(options.to, _NAME, page, document)
    sys.stdout.write(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
