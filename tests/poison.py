"""Kinds whose inputs harm their process: ``HAULAGE_KINDS=tests.poison:ISOLATED,…``.

An input that names a file leaves a line in it when it begins: its ordinal, attempt and process.
"""

import asyncio
import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from pydantic import Field

from consumer.processors.protocol import Resources, Work
from schema.errors import Fault, InvalidInput, NotFound, Skip
from schema.kinds import JobInput, Kind
from schema.outcome import Backoff, Outcome, Succeeded

MEMORY_BYTES = 256 * 1024 * 1024


class PoisonInput(JobInput):
    does: str = "nothing"
    file: str | None = Field(default=None, description="Where it says that it began")
    gate: str | None = Field(default=None, description="A file that it waits for")


class PoisonProcessor:
    def __init__(self, resources: Resources) -> None:
        self._database = resources.database

    async def process(self, work: Work) -> Outcome:
        body = work.body
        if not isinstance(body, PoisonInput):
            raise InvalidInput("not an input of these kinds")
        if body.file is not None:
            mark(Path(body.file), work)
        while body.gate is not None and not os.path.exists(body.gate):  # noqa: ASYNC240, PTH110
            await asyncio.sleep(0.01)
        await _do(body.does)
        await self._database.ping()
        return Succeeded({"pid": {os.getpid()} if body.does == "no JSON" else os.getpid()})


class Broken:
    """No processor at all."""

    def __init__(self, resources: Resources) -> None: ...


def mark(path: Path, work: Work) -> None:
    with path.open("a") as file:
        file.write(f"{work.ordinal} {work.attempt} {os.getpid()}\n")


def marks(path: Path) -> list[tuple[int, int, int]]:
    """Give ordinal, attempt and process of each run that began."""
    text = path.read_text().rpartition("\n")[0] if path.exists() else ""
    lines = (line.split() for line in text.splitlines())
    return [(int(ordinal), int(attempt), int(pid)) for ordinal, attempt, pid in lines]


async def _do(what: str) -> None:  # noqa: C901, PLR0912, PLR0915 - a list of misdeeds
    match what:
        case "nothing" | "no JSON":
            return
        case "block":
            while True:
                time.sleep(0.1)  # noqa: ASYNC251 - the misdeed itself
        case "block in C":
            re.fullmatch(r"(a|a)*b", "a" * 60)
        case "swallow":
            while True:
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    continue
        case "cancel itself":
            raise asyncio.CancelledError
        case "exit":
            sys.exit(3)
        case "exit in a task":
            await asyncio.gather(_leave(), asyncio.sleep(3600))
        case "exit at once":
            os._exit(4)
        case "crash":
            ctypes.string_at(0)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "hoard":
            hoard = [bytearray(1024 * 1024)]
            while True:
                hoard.append(bytearray(1024 * 1024))
        case "chatter":
            while True:
                print("so much to say " * 10)
        case "one long line":
            while True:
                print("so much to say", end="")
        case "print":
            print("printed for the log")
        case "shout":
            sys.stderr.write("heard in the log\n")
        case "raise":
            raise LookupError("unexpected")
        case "skip":
            raise Skip("nothing to do")
        case "miss":
            raise NotFound("not there")
        case "fail":
            raise Fault("later", retry_after_seconds=7)
        case "leave a process":
            _leave_process()
        case _:
            raise InvalidInput(f"cannot do {what}")


async def _leave() -> None:
    sys.exit(6)


def _leave_process() -> None:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)", MARKER])
    os._exit(5)


MARKER = "left-by-poison"
_BACKOFF = Backoff(base_seconds=0.01, cap_seconds=0.05)
ISOLATED = Kind(
    "isolated",
    PoisonInput,
    "tests.poison:PoisonProcessor",
    backoff=_BACKOFF,
    isolation="process",
    time_limit_seconds=2,
    memory_limit_bytes=MEMORY_BYTES,
)
UNLIMITED = Kind(
    "unlimited",
    PoisonInput,
    "tests.poison:PoisonProcessor",
    backoff=_BACKOFF,
    isolation="process",
)
BROKEN = Kind("broken", PoisonInput, "tests.poison:Broken", isolation="process")
INSIDE = Kind("inside", PoisonInput, "tests.poison:PoisonProcessor", backoff=_BACKOFF)
LIMITED = Kind(
    "limited",
    PoisonInput,
    "tests.poison:PoisonProcessor",
    backoff=_BACKOFF,
    time_limit_seconds=1.5,
)
_NAMES = ("ISOLATED", "UNLIMITED", "INSIDE", "LIMITED", "BROKEN")
REFERENCES = ",".join(f"tests.poison:{name}" for name in _NAMES)
