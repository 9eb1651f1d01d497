"""The kinds of job: what the API must know to accept one and the consumer to find its processor.

A kind from outside this tree is a module-level ``Kind`` named by the setting ``HAULAGE_KINDS``
(``package.module:NAME``); see docs/processors.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict

from schema.chunking import ChunkBounds
from schema.outcome import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")
# An interpreter with what every processor needs takes about half of this before any work.
LEAST_MEMORY_BYTES = 128 * 1024 * 1024


class JobInput(BaseModel):
    """Base of every input model: unknown fields are refused, values are not coerced."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class JobOptions(BaseModel):
    """Base of every options model: what a client may set for the whole job of a kind."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, alias_generator=None)


@dataclass(frozen=True, slots=True)
class ConcurrencyBounds:
    """Bounds of how many inputs of a kind run at once in a consumer (None: as many as it can).

    Between them it falls while many inputs fail in a way that may pass, and rises again. A kind
    whose neighbours are many, one of which may be down alone, has a minimum to match.
    """

    minimum: int = 1
    maximum: int | None = None


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of job.

    ``processor`` is ``package.module:NAME`` of a factory that takes the consumer's resources;
    only consumers import it. ``identity`` gives what makes two inputs of one job the same
    (by default the whole body); a job that holds duplicates is refused.

    A run past ``time_limit_seconds`` is cancelled and fails with ``TimeLimit``. With isolation
    ``process`` each input runs alone in a child process, which may use ``memory_limit_bytes`` of
    memory, the interpreter included; what it does to its process harms its own input only.
    """

    name: str
    input_model: type[BaseModel]
    processor: str
    options_model: type[BaseModel] = JobOptions
    chunk: ChunkBounds = field(default_factory=ChunkBounds)
    concurrency: ConcurrencyBounds = field(default_factory=ConcurrencyBounds)
    backoff: Backoff = field(default_factory=Backoff)
    max_attempts: int = 8
    identity: Callable[[BaseModel], object] | None = None
    time_limit_seconds: float | None = None
    isolation: Literal["none", "process"] = "none"
    memory_limit_bytes: int | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            msg = f"kind name {self.name!r} must match {_NAME.pattern}"
            raise ValueError(msg)
        most = self.concurrency.maximum
        if self.concurrency.minimum < 1 or (most is not None and most < self.concurrency.minimum):
            msg = f"kind {self.name!r}: concurrency must have 1 <= minimum <= maximum"
            raise ValueError(msg)
        if self.time_limit_seconds is not None and self.time_limit_seconds <= 0:
            msg = f"kind {self.name!r}: time_limit_seconds must be above 0; None sets no limit"
            raise ValueError(msg)
        if self.memory_limit_bytes is not None:
            if self.isolation != "process":
                msg = f"kind {self.name!r}: memory_limit_bytes needs isolation='process'"
                raise ValueError(msg)
            if self.memory_limit_bytes < LEAST_MEMORY_BYTES:
                msg = f"kind {self.name!r}: memory_limit_bytes is below {LEAST_MEMORY_BYTES}"
                raise ValueError(msg)
