"""Real processes of one test: started from the checkout, read by their logs, and all ended."""

import asyncio
import json
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from localstack import children, processes
from localstack.ports import LOOPBACK, free_port
from localstack.processes import Identity
from tests.forking import Module, fork
from tests.platform import eventually

CHECKOUT = Path(__file__).resolve().parent.parent.parent
# Far longer than anything takes: what is waited for happens, or the test fails.
PATIENCE_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Member:
    """One process, where it answers, and what it has written."""

    identity: Identity
    port: int
    log: Path

    @property
    def pid(self) -> int:
        return self.identity.pid

    def send(self, number: signal.Signals) -> None:
        self.identity.send(number)

    def lines(self, event: str | None = None) -> list[dict[str, Any]]:
        """Give its log events; every whole line must be one, a process may die in the last."""
        whole, _, _ = self.log.read_text().rpartition("\n")
        events = [json.loads(line) for line in whole.splitlines()]
        return [line for line in events if event in (None, line["event"])]

    async def logged(self, event: str) -> None:
        """Wait until it has written the event."""

        async def written() -> bool:
            return bool(self.lines(event))

        await _patiently(written)

    async def gone(self) -> None:
        """Wait until it has ended."""

        async def ended() -> bool:
            return processes.is_gone(self.identity)

        await _patiently(ended)

    async def readiness(self) -> tuple[int, str]:
        """Ask whether it is ready; status 0 while nothing listens."""
        return await asyncio.to_thread(_ask, self.port, "/readyz")

    async def ready(self) -> None:
        """Wait until it says that it is ready; fail at once when it dies instead."""

        async def is_ready() -> bool:
            assert not processes.is_gone(self.identity), processes.last_words(self.log)
            return (await self.readiness())[0] == 200

        await _patiently(is_ready)

    async def unready(self) -> str:
        """Wait until it listens and says that it is not ready; give what it said."""
        said = ""

        async def is_unready() -> bool:
            nonlocal said
            assert not processes.is_gone(self.identity), processes.last_words(self.log)
            status, said = await self.readiness()
            return status == 503

        await _patiently(is_unready)
        return said


@dataclass
class Fleet:
    """Starts processes with the environment of one test and ends them all with it.

    They are forked from one that has imported our code, unless ``whole`` asks for the command
    that a user would give.
    """

    folder: Path
    environment: Mapping[str, str]
    whole: bool = False
    members: list[Member] = field(default_factory=list)

    def start(self, module: str, **settings: object) -> Member:
        """Start ``python -m module``; settings are environment variables of this one alone."""
        port = free_port()
        places = {
            "HAULAGE_API_HOST": LOOPBACK,
            "HAULAGE_API_PORT": str(port),
            "HAULAGE_HEALTH_HOST": LOOPBACK,
            "HAULAGE_HEALTH_PORT": str(port),
        }
        own = {name: str(value) for name, value in settings.items()}
        name = f"{module}-{len(self.members) + 1}"
        log = self.folder / f"{name}.log"
        environment = {**children.inherited(), **self.environment, **places, **own}
        start = _start if self.whole else _fork
        identity = start(name, module, log, environment)
        member = Member(identity, port, log)
        self.members.append(member)
        return member

    async def ready(self, *members: Member) -> None:
        """Wait until each is ready."""
        await asyncio.gather(*(member.ready() for member in members))

    def none_failed(self) -> None:
        """Assert that no process ended by an error of its own."""
        for member in self.members:
            failed = [line for line in member.lines() if line["event"] in _FATAL]
            assert not failed, f"{member.identity.name}: {failed}"

    def end(self) -> None:
        """End every process, those that are stopped as well."""
        processes.stop(
            [member.identity for member in self.members],
            grace_seconds=30,
            number=signal.SIGKILL,
        )


def _start(name: str, module: str, log: Path, environment: Mapping[str, str]) -> Identity:
    command = [sys.executable, "-m", module]
    return processes.start(name, command, log=log, environment=environment, folder=CHECKOUT)


def _fork(name: str, module: str, log: Path, environment: Mapping[str, str]) -> Identity:
    process = fork(Module(module), environment, log, CHECKOUT)
    assert process.pid
    identity = processes.identify(name, process.pid, log)
    assert identity, processes.last_words(log)
    return identity


_FATAL = {"process.failed", "process.misconfigured", "http.unexpected", "http.broken_off"}


def _ask(port: int, path: str) -> tuple[int, str]:
    connection = HTTPConnection(LOOPBACK, port, timeout=30)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    except (OSError, HTTPException):
        return 0, ""
    finally:
        connection.close()


async def _patiently(condition: Callable[[], Awaitable[bool]]) -> None:
    await eventually(condition, timeout_seconds=PATIENCE_SECONDS, pause_seconds=0.05)
