"""Makes the processor of every kind from the reference that the kind names, and checks it."""

from __future__ import annotations

import inspect
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import structlog

from consumer.processors.protocol import BatchProcessor, Processor
from consumer.processors.running import OneByOne, Together
from infra.kinds import load
from infra.retry import wait_until_available
from schema.errors import HaulageError, Misconfigured

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from consumer.processors.protocol import Resources
    from consumer.work import Runner
    from schema.kinds import Kind

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@asynccontextmanager
async def load_runners(
    kinds: Mapping[str, Kind], resources: Resources, stop: asyncio.Event
) -> AsyncIterator[Mapping[str, Runner]]:
    """Give a runner for each kind, its processor started; close them, the last first, at the end.

    Raises ``Misconfigured``, naming kind and reference, when one cannot be made or is none. One
    whose ``start`` raises ``Unavailable`` is waited for, until ``stop``.
    """
    async with AsyncExitStack() as stack:
        runners: dict[str, Runner] = {}
        for kind in kinds.values():
            where = f"kind {kind.name!r}: {kind.processor}"
            processor = _made(kind, resources, where)
            if _has(processor, "close", where):
                stack.push_async_callback(_close, processor, kind.name)
            runners[kind.name] = _runner(kind, processor, where)
            if _has(processor, "start", where):
                start: Callable[[], Awaitable[object]] = processor.start  # type: ignore[attr-defined]
                await wait_until_available(f"what kind {kind.name!r} needs", start, stop)
        yield runners


def _made(kind: Kind, resources: Resources, where: str) -> object:
    factory = load(kind.processor, setting=f"kind {kind.name!r}")
    if not callable(factory):
        raise Misconfigured(f"{where} cannot be called with the consumer's resources")
    try:
        return factory(resources)
    except HaulageError as error:
        raise Misconfigured(f"{where}: {error}") from error
    except Exception as error:
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
        await processor.close()  # type: ignore[attr-defined]
    except Exception:
        # A processor that cannot close must not keep the others from it.
        log.exception("processor.not_closed", kind=kind)
