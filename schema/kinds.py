"""The kinds of job: what the API must know to accept one and the consumer to find its processor.

A kind from outside this tree is a module-level ``Kind`` named by the setting ``HAULAGE_KINDS``
(``package.module:NAME``); see docs/processors.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from schema.chunking import ChunkBounds
from schema.outcome import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")


class JobInput(BaseModel):
    """Base of every input model: unknown fields are refused, values are not coerced."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class JobOptions(BaseModel):
    """Base of every options model: what a client may set for the whole job of a kind."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, alias_generator=None)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of job.

    ``processor`` is ``package.module:NAME`` of a factory that takes the consumer's resources;
    only consumers import it. ``identity`` gives what makes two inputs of one job the same
    (by default the whole body); a job that holds duplicates is refused.
    """

    name: str
    input_model: type[BaseModel]
    processor: str
    options_model: type[BaseModel] = JobOptions
    chunk: ChunkBounds = field(default_factory=ChunkBounds)
    backoff: Backoff = field(default_factory=Backoff)
    max_attempts: int = 8
    identity: Callable[[BaseModel], object] | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            msg = f"kind name {self.name!r} must match {_NAME.pattern}"
            raise ValueError(msg)
