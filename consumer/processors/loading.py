"""Makes the processor of every kind from the reference that the kind names, and checks it."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import structlog

from consumer.processors.children import Children
from consumer.processors.isolated import Isolated
from consumer.processors.protocol import BatchProcessor, Processor
from consumer.processors.running import OneByOne, Together
from infra.kinds import load
from infra.retry import wait_until_available
from schema.errors import HaulageError, Misconfigured

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from consumer.executor import Runner
    from consumer.processors.protocol import Resources
    from schema.kinds import Kind

# So long a processor may take to close.
_CLOSE_SECONDS = 5.0

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@asynccontextmanager
async def load_runners(
    kinds: Mapping[str, Kind], resources: Resources, stop: asyncio.Event
) -> AsyncIterator[Mapping[str, Runner]]:
    """Give a runner for each kind, its processor started; close them, the last first, at the end.

    Raises ``Misconfigured``, naming kind and reference, when one cannot be made or is none. One
    whose ``start`` raises ``Unavailable`` is waited for, until ``stop``. An isolated kind is made
    and started in a child process, which then waits for its first input.
    """
    async with AsyncExitStack() as stack:
        runners: dict[str, Runner] = {}
        children: Children | None = None
        for kind in kinds.values():
            if kind.isolation == "process":
                if children is None:
                    children = await stack.enter_async_context(Children(resources.settings))
                loaded = isolated(kind, children)
            else:
                loaded = load_processor(kind, resources)
            stack.push_async_callback(loaded.close)
            runners[kind.name] = loaded.runner
            await _started(kind, loaded, stop)
        yield runners


async def _started(kind: Kind, loaded: Loaded, stop: asyncio.Event) -> None:
    """Start a processor; one that is still at it when the process is to end is cancelled."""
    patience = asyncio.timeout(None)
    try:
        # In this very task, where it will be closed: what it opens may belong to its task.
        async with patience:
            ending = asyncio.create_task(_end_at(stop, patience), name="end of the start")
            try:
                await wait_until_available(f"what kind {kind.name!r} needs", loaded.start, stop)
            finally:
                ending.cancel()
    except TimeoutError:
        if not patience.expired():
            raise


async def _end_at(stop: asyncio.Event, patience: asyncio.Timeout) -> None:
    await stop.wait()
    patience.reschedule(0)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A runner, and how what it runs is started and closed."""

    runner: Runner
    start: Callable[[], Awaitable[object]]
    close: Callable[[], Awaitable[object]]


def isolated(kind: Kind, children: Children) -> Loaded:
    """Give what runs the processor of a kind in child processes."""
    return Loaded(Isolated(kind, children), lambda: children.prepare(kind), _nothing)


def load_processor(kind: Kind, resources: Resources) -> Loaded:
    """Make the processor of a kind in this process; raise ``Misconfigured`` where it is none."""
    where = f"kind {kind.name!r}: {kind.processor}"
    processor = _made(kind, resources, where)
    start: Callable[[], Awaitable[object]] = _nothing
    if _has(processor, "start", where):
        start = processor.start  # type: ignore[attr-defined]
    close: Callable[[], Awaitable[object]] = _nothing
    if _has(processor, "close", where):
        close = partial(_close, processor, kind.name)
    return Loaded(_runner(kind, processor, where), start, close)


async def _nothing() -> None:
    """Start or close what needs neither."""


def _made(kind: Kind, resources: Resources, where: str) -> object:
    factory = load(kind.processor, setting=f"kind {kind.name!r}")
    if not callable(factory):
        raise Misconfigured(f"{where} cannot be called with the consumer's resources")
    try:
        return factory(resources)
    except HaulageError as error:
        raise Misconfigured(f"{where}: {error}") from error
    except (Exception, SystemExit) as error:
        raise Misconfigured(f"{where} failed: {type(error).__name__}: {error}") from error


def _runner(kind: Kind, processor: object, where: str) -> Runner:
    one, many = _has(processor, "process", where), _has(processor, "process_many", where)
    if one and many:
        raise Misconfigured(f"{where} has both process and process_many; keep one of them")
    if one and isinstance(processor, Processor):
        return OneByOne(kind, processor)
    if many and isinstance(processor, BatchProcessor):
        return Together(kind, processor)
    raise Misconfigured(f"{where} made a {type(processor).__name__} without process(work)")


def _has(processor: object, name: str, where: str) -> bool:
    method = getattr(processor, name, None)
    if method is None:
        return False
    if not inspect.iscoroutinefunction(method):
        raise Misconfigured(f"{where}: {name} must be an `async def`")
    return True


async def _close(processor: object, kind: str) -> None:
    try:
        async with asyncio.timeout(_CLOSE_SECONDS):
            await processor.close()  # type: ignore[attr-defined]
    except Exception:
        # A processor that cannot close must not keep the others from it.
        log.exception("processor.not_closed", kind=kind)
