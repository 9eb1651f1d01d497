"""Work that lasts until a step says what came of it, each piece under a token of its own."""

import asyncio
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from typing import Any

from consumer.executor import Runner
from consumer.processors.protocol import Work
from consumer.processors.running import OneByOne, Together
from infra.queue.protocol import Claim, ClaimedInput
from schema.chunking import ChunkBounds
from schema.errors import Fault, InvalidInput, NotFound, Skip
from schema.kinds import JobInput, Kind
from schema.outcome import Artifact, Backoff, Failed, Outcome, Succeeded

# Chunks are as large as they may be, whatever pace this machine has today.
_ANY_PACE_MS = 1e12
TIME_LIMIT_SECONDS = 200.0
BACKOFF = Backoff(base_seconds=8, cap_seconds=30)


class Number(JobInput):
    number: int


SINGLE = Kind(
    "single",
    Number,
    "tests.simulation.work:unused",
    chunk=ChunkBounds(maximum=3, target_slice_ms=_ANY_PACE_MS),
    backoff=BACKOFF,
    time_limit_seconds=TIME_LIMIT_SECONDS,
)
BATCH = Kind(
    "batch",
    Number,
    "tests.simulation.work:unused",
    chunk=ChunkBounds(maximum=4, target_slice_ms=_ANY_PACE_MS),
    backoff=BACKOFF,
)
KINDS = {kind.name: kind for kind in (SINGLE, BATCH)}


class Saying(Enum):
    """What a processor says of an input."""

    DONE = "done"
    FILE = "a file"
    REUSED = "an earlier file"
    SKIP = "nothing to do"
    MISSING = "not there"
    REFUSED = "never"
    FAILED = "another time"
    ASKED_TO_WAIT = "in a minute"
    BROKEN = "an unexpected exception"
    NONSENSE = "what cannot be recorded"


@dataclass(eq=False)
class Piece:
    """A processor at work: on these inputs of this claim, under these tokens."""

    claim: Claim
    tokens: dict[int, int]
    said: asyncio.Future[list[Outcome | Exception]]


class Bench:
    """The pieces that one consumer has at work; all consumers share the register of tokens."""

    def __init__(self, register: dict[int, tuple[int, int]]) -> None:
        self.pieces: list[Piece] = []
        self._register = register

    def runners(self) -> dict[str, Runner]:
        processor = _Processor(self)
        return {
            SINGLE.name: _Claiming(OneByOne(SINGLE, processor)),
            BATCH.name: _Claiming(Together(BATCH, processor)),
        }

    async def work(self, works: Sequence[Work]) -> list[Outcome | Exception]:
        claim = _claim.get()
        tokens = {}
        for work in works:
            tokens[work.ordinal] = len(self._register) + 1
            self._register[tokens[work.ordinal]] = claim.entry_id, claim.epoch
        piece = Piece(claim, tokens, asyncio.get_running_loop().create_future())
        self.pieces.append(piece)
        try:
            return await piece.said
        finally:
            self.pieces.remove(piece)


def say(piece: Piece, sayings: Sequence[Saying]) -> None:
    """End a piece of work; sayings are repeated if there are fewer than inputs."""
    piece.said.set_result(
        [
            _said(sayings[number % len(sayings)], ordinal, token)
            for number, (ordinal, token) in enumerate(piece.tokens.items())
        ]
    )


def _said(saying: Saying, ordinal: int, token: int) -> Outcome | Exception:
    text = f"token {token}"
    match saying:
        case Saying.DONE:
            return Succeeded({"token": token})
        case Saying.FILE | Saying.REUSED:
            artifact = Artifact(f"file {ordinal % 2}", f"s3://bucket/{token}", 1, "etag")
            return Succeeded({"token": token}, artifact, reused=saying is Saying.REUSED)
        case Saying.SKIP:
            return Skip(text)
        case Saying.MISSING:
            return NotFound(text)
        case Saying.REFUSED:
            return InvalidInput(text)
        case Saying.FAILED:
            return Failed("Busy", text)
        case Saying.ASKED_TO_WAIT:
            return Fault(text, retry_after_seconds=60)
        case Saying.BROKEN:
            return LookupError(text)
        case Saying.NONSENSE:
            return Succeeded({"token": {token}})


class _Processor:
    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    async def process(self, work: Work) -> Outcome:
        (said,) = await self._bench.work([work])
        if isinstance(said, Exception):
            raise said
        return said

    async def process_many(self, works: Sequence[Work]) -> list[Outcome]:
        said = await self._bench.work(works)
        outcomes = []
        for one in said:
            if isinstance(one, Exception):
                raise one
            outcomes.append(one)
        return outcomes


_claim: ContextVar[Claim] = ContextVar("claim")


class _Claiming:
    """Tells the processor which claim it works for; it needs to know for its token alone."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.together = runner.together

    async def run(self, claim: Claim, inputs: Sequence[ClaimedInput]) -> Sequence[Outcome]:
        _claim.set(claim)
        return await self._runner.run(claim, inputs)


def token_of(result: dict[str, Any] | None, message: str | None) -> int | None:
    """Read the token from what was written of an input."""
    if result:
        return int(result["token"])
    if message and message.startswith("token "):
        return int(message.removeprefix("token "))
    return None
