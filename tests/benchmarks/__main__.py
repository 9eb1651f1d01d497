"""``python -m tests.benchmarks``: measure, print, and write docs/benchmarks.md, .json and .svg."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from tests.benchmarks import (
    adaptive,
    drain,
    export,
    idle,
    latency,
    single,
    submit,
    sustained,
)
from tests.benchmarks.contest import say
from tests.benchmarks.machine import describe
from tests.benchmarks.report import as_document, as_markdown, write
from tests.benchmarks.stage import CHECKOUT, Stage

if TYPE_CHECKING:
    from tests.benchmarks.contest import Table

_COMMAND = ".venv/bin/python -m tests.benchmarks"
PARTS = ("submit", "single", "drain", "sustained", "latency", "adaptive", "idle", "export")

_AGAIN = (
    f"All of it again: `make bench`. One part: `{_COMMAND} --only PART`, of"
    f" {', '.join(PARTS)}; one short round: `--quick`. Both are written to `.local/benchmarks`."
)


async def measure(
    parts: list[str], *, rounds: int, quick: bool
) -> tuple[list[Table], dict[str, object]]:
    """Run the chosen parts; give what came of them, and where it came about."""
    tables: list[Table] = []
    async with Stage() as stage:
        about = describe(stage.postgres_version)
        for part in parts:
            began = time.perf_counter()
            match part:
                case "submit":
                    tables += await submit.contests(stage, rounds=rounds, quick=quick)
                case "single":
                    jobs = 80 if quick else 400
                    tables.append(await single.contest(stage, rounds=rounds, jobs=jobs))
                case "sustained":
                    seconds = 1.0 if quick else 2.0
                    tables += await sustained.contests(stage, rounds=rounds, seconds=seconds)
                case "drain":
                    jobs = 2 if quick else 10
                    tables.append(await drain.contest(stage, jobs=jobs, rounds=rounds))
                case "latency":
                    samples = 20 if quick else 60
                    # A round is short, and its ratio moves by a tenth.
                    latencies = await latency.contest(stage, rounds=2 * rounds + 1, samples=samples)
                    tables.append(latencies)
                case "idle":
                    seconds = 3.0 if quick else 80 / rounds
                    tables.append(await idle.contest(stage, rounds=rounds, seconds=seconds))
                case "adaptive":
                    tables.append(await adaptive.contest(stage, rounds=rounds))
                case _:
                    files = 60 if quick else 300
                    tables.append(await export.contest(stage, rounds=rounds, files=files))
            say(f"{part} took {time.perf_counter() - began:.0f} s")
    return tables, about


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog=_COMMAND, description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="one short round, to see that it works"
    )
    parser.add_argument("--rounds", type=int, help="default: 5, or 1 when quick")
    parser.add_argument("--only", action="append", choices=PARTS, help="only this part")
    parser.add_argument(
        "--to",
        type=Path,
        help="the folder to write to; default: docs for all of it, else .local/benchmarks",
    )
    options = parser.parse_args()
    rounds = options.rounds or (1 if options.quick else 5)
    is_part = bool(options.quick or options.only or options.rounds)
    folder = options.to or (CHECKOUT / (".local/benchmarks" if is_part else "docs"))
    parts: list[str] = options.only or list(PARTS)
    tables, about = uvloop.run(measure(parts, rounds=rounds, quick=options.quick))
    page = as_markdown(tables, about, again=_AGAIN, picture="benchmarks.svg")
    write(folder, "benchmarks", page, as_document(tables, about))
    sys.stdout.write(page)
    say(f"Written to {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
