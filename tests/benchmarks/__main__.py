"""``python -m tests.benchmarks``: measure, print, and write docs/benchmarks.md and .json."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from tests.benchmarks import adaptive, drain, export, latency, submit
from tests.benchmarks.contest import say
from tests.benchmarks.machine import describe
from tests.benchmarks.report import as_json, as_markdown
from tests.benchmarks.stage import CHECKOUT, Stage

if TYPE_CHECKING:
    from tests.benchmarks.contest import Table

PARTS = ("submit", "drain", "latency", "adaptive", "export")
# A minute each, most of it spent waiting: more rounds say little more.
_ADAPTIVE_ROUNDS = 2


async def measure(
    parts: list[str], *, rounds: int, quick: bool
) -> tuple[list[Table], dict[str, object]]:
    """Run the chosen parts; give what came of them, and where it came about."""
    tables: list[Table] = []
    async with Stage() as stage:
        about = describe(stage.postgres_version)
        for part in parts:
            say(f"{part} ...")
            match part:
                case "submit":
                    tables += await submit.contests(stage, rounds=rounds, quick=quick)
                case "drain":
                    jobs = 2 if quick else 5
                    tables.append(await drain.contest(stage, jobs=jobs, rounds=rounds))
                case "latency":
                    samples = 20 if quick else 100
                    tables.append(await latency.contest(stage, rounds=rounds, samples=samples))
                case "adaptive":
                    tables.append(
                        await adaptive.contest(stage, rounds=min(rounds, _ADAPTIVE_ROUNDS))
                    )
                case _:
                    files = 60 if quick else 300
                    tables.append(await export.contest(stage, rounds=rounds, files=files))
    return tables, about


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="one short round, to see that it works"
    )
    parser.add_argument("--rounds", type=int, help="default: 5, or 1 when quick")
    parser.add_argument("--only", action="append", choices=PARTS, help="only this part")
    parser.add_argument("--to", type=Path, help="the folder to write to; default: docs")
    options = parser.parse_args()
    rounds = options.rounds or (1 if options.quick else 5)
    # A quick run says nothing that is worth keeping.
    folder = options.to or (CHECKOUT / (".local/benchmarks" if options.quick else "docs"))
    parts: list[str] = options.only or list(PARTS)
    tables, about = uvloop.run(measure(parts, rounds=rounds, quick=options.quick))
    page = as_markdown(tables, about)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "benchmarks.json").write_text(as_json(tables, about))
    (folder / "benchmarks.md").write_text(page)
    sys.stdout.write(page)
    say(f"Written to {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
