"""Makes the processor of every kind from the reference that the kind names, and checks it."""

from __future__ import annotations

import inspect
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import structlog

from consumer.processors.protocol import BatchProcessor, Processor
from infra.kinds import load
from schema.errors import HaulageError, Misconfigured

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping

    from consumer.processors.protocol import Resources
    from schema.kinds import Kind

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@asynccontextmanager
async def processors(
    kinds: Iterable[Kind], resources: Resources
) -> AsyncIterator[Mapping[str, Processor | BatchProcessor]]:
    """Give the processors by name of kind, started; close them, the last first, at the end.

    Raises ``Misconfigured``, naming kind and reference, when one cannot be made or is none.
    """
    async with AsyncExitStack() as stack:
        made: dict[str, Processor | BatchProcessor] = {}
        for kind in kinds:
            where = f"kind {kind.name!r}: {kind.processor}"
            processor = _made(kind, resources, where)
            if _has(processor, "close", where):
                stack.push_async_callback(_close, processor, kind.name)
            made[kind.name] = _checked(processor, where)
            if _has(processor, "start", where):
                await processor.start()  # type: ignore[attr-defined]
        yield made


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


def _checked(processor: object, where: str) -> Processor | BatchProcessor:
    one, many = _has(processor, "process", where), _has(processor, "process_many", where)
    if one and many:
        raise Misconfigured(f"{where} has both process and process_many; keep one of them")
    if one and isinstance(processor, Processor):
        return processor
    if many and isinstance(processor, BatchProcessor):
        return processor
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
