"""The inside of a child process: load the processor, then run one input after the other."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import TYPE_CHECKING

import structlog
import uvloop

from consumer.processors.child import listen
from consumer.processors.frames import (
    HEAD_BYTES,
    Hello,
    Retire,
    Run,
    answer,
    answer_outcome,
    length,
    unpack,
)
from consumer.processors.limits import cancelled, memory_limit
from consumer.processors.loading import load_processor
from consumer.processors.resources import open_child_resources
from infra.kinds import load_kinds
from infra.telemetry.logs import configure_logging, traced
from schema.errors import Misconfigured, Unavailable
from schema.outcome import Failed

if TYPE_CHECKING:
    from consumer.processors.loading import Loaded
    from infra.settings import Settings
    from schema.kinds import Kind
    from schema.outcome import Outcome

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


def serve(channel: int, memory_limit_bytes: int | None) -> None:
    """Serve the parent at the other end of the socket, until it says to retire.

    What ends the loop from inside, such as ``SystemExit``, passes through without any clean-up:
    what is left in the loop may never end.
    """
    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    with socket.socket(fileno=channel) as parent:
        loop.run_until_complete(_serve(parent, memory_limit_bytes))


async def _serve(parent: socket.socket, memory_limit_bytes: int | None) -> None:
    requests: asyncio.Queue[bytes] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    listen(
        lambda: _received(parent),
        lambda payload: loop.call_soon_threadsafe(requests.put_nowait, payload),
    )
    hello = unpack(await requests.get())
    assert isinstance(hello, Hello), "the parent says first what this process is to be"
    settings = hello.settings.model_copy(update={"log_format": "json"})
    configure_logging(settings, process="child", worker=f"child {os.getpid()}")
    async with open_child_resources(settings, name=f"haulage child {hello.kind}") as resources:
        try:
            loaded = load_processor(_kind(settings, hello.kind), resources)
            await loaded.start()
        except (Misconfigured, Unavailable) as error:
            parent.sendall(answer(error=type(error).__name__, message=str(error)))
            return
        parent.sendall(answer(ready=True))
        while not isinstance(request := unpack(await requests.get()), Retire):
            assert isinstance(request, Run), "after hello there is only work"
            parent.sendall(answer_outcome(await _outcome(loaded, request, memory_limit_bytes)))
        await loaded.close()


def _kind(settings: Settings, name: str) -> Kind:
    kinds = load_kinds(settings.kinds)
    if name not in kinds:
        raise Misconfigured(f"kind {name!r} is isolated, and not one of HAULAGE_KINDS")
    return kinds[name]


async def _outcome(loaded: Loaded, request: Run, memory_limit_bytes: int | None) -> Outcome:
    claim = request.claim
    (input_,) = claim.inputs
    try:
        with traced(claim.trace, job=claim.job_key, entry=claim.entry_id, ordinal=input_.ordinal):
            (outcome,) = await loaded.runner.run(claim, claim.inputs)
    except asyncio.CancelledError:  # by itself: nobody cancels anything in a child
        outcome = cancelled()
    except MemoryError:  # while it was being told of another
        outcome = Failed(MemoryError.__name__, "")
    match outcome:
        case Failed(error_class=MemoryError.__name__) if memory_limit_bytes:
            return memory_limit(memory_limit_bytes)
        case _:
            return outcome


def _received(parent: socket.socket) -> bytes | None:
    """Receive one payload; give nothing when the parent is gone."""
    head = _exactly(parent, HEAD_BYTES)
    return None if head is None else _exactly(parent, length(head))


def _exactly(parent: socket.socket, size: int) -> bytes | None:
    received = bytearray()
    while len(received) < size:
        try:
            part = parent.recv(size - len(received))
        except OSError:
            return None
        if not part:
            return None
        received += part
    return bytes(received)
