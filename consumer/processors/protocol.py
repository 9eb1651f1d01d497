"""What a processor is: the plug-in that does the work of one kind.

A processor is made once per consumer process by the factory that its ``Kind`` names, called
with ``Resources``. It has ``process``, or ``process_many`` for kinds that do better with many
inputs at once; either may be cancelled at any await. Raising says what came of an input:

==================  ==================================================
raise               outcome
==================  ==================================================
``NotFound``        NOT_FOUND, final
``Refusal``         DLQ at once
``Skip``            SKIPPED
``Fault``           retried, after ``retry_after_seconds`` if it says so
anything else       retried like a fault, and logged with its traceback
==================  ==================================================

It may have ``start`` (checks that ought to end the process before any work, by raising
``Misconfigured``) and ``close`` (gives back what it opened), both ``async`` and without arguments.

The work must be idempotent: an input can run again after a crash, though only one outcome counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Sequence
    from uuid import UUID

    from pydantic import BaseModel

    from infra.database import Database
    from infra.settings import Settings
    from infra.storage import Storage
    from schema.message import Trace
    from schema.outcome import Outcome


# A tuple: one is made for every input, and a frozen dataclass costs several times as much.
class Work(NamedTuple):
    """One input to process, and what a processor may know of its job."""

    body: BaseModel
    options: BaseModel
    job_id: UUID
    job_key: str
    owner_id: UUID
    request_date: dt.date
    ordinal: int
    attempt: int
    trace: Trace


@dataclass(frozen=True, slots=True)
class Resources:
    """What a consumer process lends to its processors."""

    settings: Settings
    database: Database
    storage: Storage | None


@runtime_checkable
class Processor(Protocol):
    """Does the work of one input at a time; the consumer runs many side by side."""

    async def process(self, work: Work) -> Outcome:
        """Do the work; see the module for what to raise."""
        ...


@runtime_checkable
class BatchProcessor(Protocol):
    """Does the work of many inputs of one job in one call."""

    async def process_many(self, works: Sequence[Work]) -> Sequence[Outcome]:
        """Do the work and say what came of each, in order; raising applies to all of them."""
        ...


ProcessorFactory = Any  # Callable[[Resources], Processor | BatchProcessor], checked when loaded
