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
from schema.errors import Misconfigured
from schema.limits import MOST_AT_ONCE, MOST_ATTEMPTS, check_positive, check_whole
from schema.outcome import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_REFERENCE = re.compile(r"[\w.]+:[\w.]+")
# An interpreter with what every processor needs takes about half of this before any work.
LEAST_MEMORY_BYTES = 128 * 1024 * 1024
_MOST_MEMORY_BYTES = 2**63 - 1


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

    def __post_init__(self) -> None:
        check_whole("concurrency minimum", self.minimum, least=1, most=MOST_AT_ONCE)
        if self.maximum is not None:
            check_whole("concurrency maximum", self.maximum, least=self.minimum, most=MOST_AT_ONCE)


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
    identity: Callable[[BaseModel], Hashable] | None = None
    time_limit_seconds: float | None = None
    isolation: Literal["none", "process"] = "none"
    memory_limit_bytes: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            msg = f"kind name {self.name!r} must match {_NAME.pattern}"
            raise ValueError(msg)
        try:
            self._check()
        except ValueError as error:
            msg = f"kind {self.name!r}: {error}"
            raise ValueError(msg) from None

    def _check(self) -> None:
        for name, model in (("input", self.input_model), ("options", self.options_model)):
            if not isinstance(model, type) or not issubclass(model, BaseModel):
                msg = f"{name}_model must be a pydantic model, not {model!r}"
                raise ValueError(msg)  # noqa: TRY004 - one class for whatever a kind has wrong
        if not isinstance(self.processor, str) or not _REFERENCE.fullmatch(self.processor):
            msg = f"processor must be 'package.module:NAME', not {self.processor!r}"
            raise ValueError(msg)
        if self.identity is not None and not callable(self.identity):
            msg = f"identity must be a function, not {self.identity!r}"
            raise ValueError(msg)
        check_whole("max_attempts", self.max_attempts, least=1, most=MOST_ATTEMPTS)
        if self.time_limit_seconds is not None:
            check_positive("time_limit_seconds (None sets no limit)", self.time_limit_seconds)
        if self.isolation not in {"none", "process"}:
            msg = f"isolation must be 'none' or 'process', not {self.isolation!r}"
            raise ValueError(msg)
        if self.memory_limit_bytes is not None:
            if self.isolation != "process":
                msg = "memory_limit_bytes needs isolation='process'"
                raise ValueError(msg)
            check_whole(
                "memory_limit_bytes",
                self.memory_limit_bytes,
                least=LEAST_MEMORY_BYTES,
                most=_MOST_MEMORY_BYTES,
            )

    def identity_of(self, model: BaseModel) -> Hashable:
        """Give what makes this input the same as another; raise ``Misconfigured`` where it cannot.

        Only for a kind that has an ``identity``.
        """
        assert self.identity is not None, "the whole body is the identity"
        try:
            identity = self.identity(model)
            hash(identity)
        except Exception as error:
            # Whatever the code of a kind raises, it is not the request that is at fault.
            told = f"{type(error).__name__}: {error}"
            raise Misconfigured(
                f"kind {self.name!r}: identity must give a text, a number or a tuple: {told}"
            ) from error
        return identity
