"""One child process, as its parent sees it: start it, hand it an input, end it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from contextlib import suppress
from contextvars import Context
from typing import TYPE_CHECKING

import structlog

from consumer.processors.child import EXIT_OUT_OF_MEMORY
from consumer.processors.frames import (
    LIMIT_BYTES,
    Garbled,
    Hello,
    Retire,
    Run,
    outcome_in,
    pack,
    read_answer,
    read_frame,
)
from consumer.processors.limits import memory_limit, process_died, time_limit
from consumer.processors.output import Output
from schema.errors import Misconfigured, Unavailable

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Mapping
    from typing import Any

    from infra.queue.protocol import Claim
    from infra.settings import Settings
    from schema.kinds import Kind
    from schema.outcome import Failed, Outcome

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_MODULE = "consumer.processors.child"
_RETIRE_SECONDS = 5.0
_LAST_WORDS_SECONDS = 1.0
# What was killed ends at once, but not before it is waited for.
_COLLECTING_SECONDS = 0.05
_COLLECTING_TIMES = 20


async def _collect_group(group: int) -> None:
    """Collect what was killed of a group, where it became ours: as in a container, as process 1."""
    for _ in range(_COLLECTING_TIMES):
        try:
            while os.waitpid(-group, os.WNOHANG)[0]:  # noqa: ASYNC222 - it does not wait
                pass
        except ChildProcessError:
            return  # nothing of it is left, or it is another's to collect
        await asyncio.sleep(_COLLECTING_SECONDS)


class Died(Exception):
    """The process ended, or said what it cannot have meant; it has been killed then."""


class Child:
    """A process that runs one input of its kind at a time."""

    def __init__(
        self,
        kind: Kind,
        process: Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.kind = kind
        self.inputs = 0
        self._process = process
        self._reader = reader
        self._writer = writer
        self._claim: Claim | None = None
        self._output = Output(self._about)
        self._ended = asyncio.Event()
        self._is_condemned = False

    @property
    def pid(self) -> int:
        """Give the process id, which is its group's and its session's as well."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Say whether it may be handed an input."""
        return self._process.returncode is None and not self._is_condemned

    async def tend(self, output: asyncio.StreamReader) -> None:
        """Collect the process when it ends, with whatever it started; log what it writes."""
        reading = asyncio.ensure_future(self._output.read(output))
        try:
            await self._process.wait()
            self.kill()
            self._ended.set()
            await _collect_group(self._process.pid)
            # What it said last is read to the end; a process that fled from its group may keep
            # pipe and socket open, and is not waited for.
            await asyncio.wait({reading}, timeout=_LAST_WORDS_SECONDS)
        finally:
            reading.cancel()
            self._writer.close()

    async def greet(self, settings: Settings) -> None:
        """Return when it is ready; raise what keeps it from that.

        ``Misconfigured`` and ``Unavailable`` are its own; a death is ``Unavailable`` too, because
        the next one may live.
        """
        try:
            said = await self._asked(pack(Hello(settings, self.kind.name)))
        except Died as died:
            failed = self._failure(died)
            raise Unavailable(f"kind {self.kind.name!r}: {failed.message}") from died
        match said:
            case {"ready": True}:
                return
            case {"error": "Misconfigured", "message": str(message)}:
                raise Misconfigured(message)
            case _:
                raise Unavailable(str(said.get("message", "the child is not ready")))

    async def run(self, claim: Claim) -> Outcome:
        """Give what came of the one input of this claim, whatever the processor does.

        A child that is no longer alive afterwards is of no further use.
        """
        self.inputs += 1
        self._claim = claim
        self._output.begin()
        limit = self.kind.time_limit_seconds
        try:
            async with asyncio.timeout(limit):
                outcome = outcome_in(await self._asked(pack(Run(claim))))
        except TimeoutError:
            assert limit is not None, "there is no timeout without a limit"
            await self._killed()
            return time_limit(limit)
        except (Died, Garbled) as died:
            await self._killed()
            return self._failure(died)
        except asyncio.CancelledError:
            self.kill()
            raise
        return outcome

    async def retire(self) -> None:
        """Let it close what it holds and end; kill it when that takes too long."""
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(_RETIRE_SECONDS):
                self._writer.write(pack(Retire()))
                await self._ended.wait()
        self.kill()

    def kill(self) -> None:
        """Kill the process and what it started in its group; ``tend`` collects it."""
        self._is_condemned = True
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    async def _killed(self) -> None:
        self.kill()
        await self._ended.wait()

    async def _asked(self, request: bytes) -> Mapping[str, Any]:
        """Send a request and wait for its answer, or for the end of the process."""
        try:
            self._writer.write(request)
            return read_answer(await read_frame(self._reader))
        except (OSError, asyncio.IncompleteReadError) as error:
            # Its end of the socket closes a moment before the process can be collected.
            with suppress(TimeoutError):
                async with asyncio.timeout(_LAST_WORDS_SECONDS):
                    await self._ended.wait()
            raise Died from error

    def _failure(self, died: Died | Garbled) -> Failed:
        code = self._process.returncode
        limit = self.kind.memory_limit_bytes
        failed = process_died(-signal.SIGKILL if code is None else code)
        if code == EXIT_OUT_OF_MEMORY and limit is not None:
            failed = memory_limit(limit)
        log.error(
            "processor.process_died",
            error_class=failed.error_class,
            error=failed.message,
            garbled=str(died) or None,
            inputs=self.inputs,
            **self._about(),
        )
        return failed

    def _about(self) -> dict[str, object]:
        about: dict[str, object] = {"kind": self.kind.name, "child": self._process.pid}
        if (claim := self._claim) is not None:
            about |= {
                "job": claim.job_key,
                "entry": claim.entry_id,
                "ordinal": claim.inputs[0].ordinal,
                "correlation_id": claim.trace.correlation_id,
            }
        return about


async def start_child(kind: Kind, group: asyncio.TaskGroup) -> Child:
    """Start a process of its own session; a task of the group tends it until it has ended.

    Its standard input is our socket, and both its outputs are one pipe.
    """
    ours, theirs = socket.socketpair()
    output, written = os.pipe()
    try:
        with theirs, os.fdopen(written, "wb") as out:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                _MODULE,
                kind.name,
                str(os.getpid()),
                str(kind.memory_limit_bytes or 0),
                stdin=theirs.fileno(),
                stdout=out,
                stderr=out,
                start_new_session=True,
                env=_environment(),
            )
        reader, writer = await asyncio.open_connection(sock=ours, limit=LIMIT_BYTES)
    except BaseException:
        # Whatever has been started sees the end of its socket, and ends.
        ours.close()
        os.close(output)
        raise
    child = Child(kind, process, reader, writer)
    # What it writes belongs to whatever it runs then, not to the input for which it was started.
    group.create_task(_tended(child, output), name=f"child {child.pid}", context=Context())
    return child


async def _tended(child: Child, output: int) -> None:
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(output, "rb", buffering=0)
    )
    try:
        await child.tend(reader)
    finally:
        transport.close()


def _environment() -> dict[str, str]:
    """Give our environment, and our way of finding modules, however we came by it."""
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)  # noqa: PTH109 - a string
    # Without a buffer: what is printed for one input would come out under another.
    return {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
