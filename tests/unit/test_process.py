"""How a process ends, and what it tells of that."""

import asyncio
import gc
import json
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest

from infra.process import collect_garbage

CHECKOUT = Path(__file__).resolve().parents[2]
DSN = "postgresql://nobody@127.0.0.1:1/none"


def ended(script: str) -> tuple[int, list[Any]]:
    """Run a script as a process of ours; give its exit code and the lines of its log."""
    environment = {"DATABASE_URL": DSN, "HAULAGE_LOG_FORMAT": "json", "CONSUMER_MODE": "outbox"}
    process = subprocess.run(
        [sys.executable, "-c", script],
        env=environment, cwd=CHECKOUT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return process.returncode, list(map(json.loads, (process.stdout + process.stderr).splitlines()))


LEAVING = """
import asyncio, sys
from infra.process import run

async def leave():
    raise {what}

async def serve(settings, worker, stop):
    async with asyncio.TaskGroup() as group:
        {where}.create_task(leave())
        await asyncio.sleep(3600)

sys.exit(run("leaving", serve))
"""


@pytest.mark.parametrize(
    ("what", "where"),
    [("SystemExit(3)", "group"), ("SystemExit(3)", "asyncio"), ("BaseException('no')", "group")],
)
def test_whatever_ends_a_process_from_inside_is_logged_as_that(what: str, where: str) -> None:
    """It was told as a second signal, which nobody had sent, or as plain text."""
    code, lines = ended(LEAVING.format(what=what, where=where))
    assert code == 1, lines
    told = {line["event"] for line in lines if line["event"].startswith("process.")}
    assert told == {"process.started", "process.failed"}
    assert what.partition("(")[0] in str(lines[-1]["exception"])


FORGETTING = """
import asyncio, gc, sys
import asyncpg
from infra.process import run

async def serve(settings, worker, stop):
    loop = asyncio.get_running_loop()
    for error in (asyncpg.ConnectionDoesNotExistError("it ended"), ValueError("who waits?")):
        loop.create_future().set_exception(error)
    gc.collect()

sys.exit(run("forgetting", serve))
"""


def test_what_the_driver_leaves_behind_of_a_session_that_ended_is_no_line() -> None:
    """Each outage during a large submission wrote one, at error, beside the line that says so."""
    code, lines = ended(FORGETTING)
    assert code == 0, lines
    told = [line["event"] for line in lines if not line["event"].startswith("process.")]
    assert len(told) == 1
    assert "who waits?" in told[0]


class Cycle:
    def __init__(self) -> None:
        self.itself = self


@pytest.mark.parametrize("survived", [0, 1, 2])
async def test_cycles_are_freed_where_too_little_is_made_for_the_collector_to_begin(
    survived: int,
) -> None:
    gc.disable()
    try:
        cycle = Cycle()
        for generation in range(survived):
            gc.collect(generation)
        of = weakref.ref(cycle)
        del cycle
        async with asyncio.timeout(20):
            collect_garbage(asyncio.get_running_loop(), every_seconds=0.001)
            while of() is not None:
                await asyncio.sleep(0)
    finally:
        gc.enable()
