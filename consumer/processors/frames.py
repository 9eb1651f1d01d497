"""What a consumer and the child processes of isolated kinds say to each other, over one socket.

A frame is its length in four bytes and then so many bytes. The consumer sends pickles of its own
making, which a child may trust; a child answers in JSON, because nobody may trust a child.
"""

from __future__ import annotations

import json
import pickle
import struct
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from schema.outcome import Artifact, Failed, Missing, Refused, Skipped, Succeeded
from schema.storable import storable

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping

    from infra.queue.protocol import Claim
    from infra.settings import Settings
    from schema.outcome import Outcome

HEAD_BYTES = 4
LIMIT_BYTES = 16 * 1024 * 1024
_HEAD = struct.Struct(">I")
_OUTCOMES = {one.__name__: one for one in (Succeeded, Skipped, Missing, Refused, Failed)}


class Garbled(Exception):
    """What arrived is no frame of the other side's, or longer than any may be."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The first frame to a child: what to be."""

    settings: Settings
    kind: str


@dataclass(frozen=True, slots=True)
class Run:
    """A frame to a child: process the one input of this claim."""

    claim: Claim


@dataclass(frozen=True, slots=True)
class Retire:
    """The last frame to a child: close what is open, and end."""


Request = Hello | Run | Retire


def frame(payload: bytes) -> bytes:
    """Put the length before the payload."""
    return _HEAD.pack(len(payload)) + payload


def length(head: bytes) -> int:
    """Read a length; raise ``Garbled`` when it is above the limit."""
    (size,) = _HEAD.unpack(head)
    if size > LIMIT_BYTES:
        raise Garbled(f"a frame of {size} bytes")
    return int(size)


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    """Read one payload; raise ``IncompleteReadError`` at the end of the stream."""
    return await reader.readexactly(length(await reader.readexactly(HEAD_BYTES)))


def pack(request: Request) -> bytes:
    """Write what the consumer says."""
    return frame(pickle.dumps(request, protocol=pickle.HIGHEST_PROTOCOL))


def unpack(payload: bytes) -> Request:
    """Read what the consumer said; only for a child, and only from the socket it was born with."""
    request: Request = pickle.loads(payload)  # noqa: S301 - written by our parent
    return request


def answer(**said: object) -> bytes:
    """Write what a child says."""
    return frame(json.dumps(said, separators=(",", ":")).encode())


def answer_outcome(outcome: Outcome) -> bytes:
    """Write what came of an input; what cannot be written, or is too long, failed."""
    said = {one.name: getattr(outcome, one.name) for one in fields(outcome)}
    if isinstance(said.get("artifact"), Artifact):
        said["artifact"] = asdict(said["artifact"])
    try:
        written = answer(outcome=type(outcome).__name__, fields=said)
    except (TypeError, ValueError, RecursionError) as error:
        failed = Failed(type(error).__name__, f"the result is not JSON: {error}")
        return answer_outcome(failed)
    if len(written) > LIMIT_BYTES + HEAD_BYTES:
        reason = f"the result takes {len(written)} bytes of JSON, at most {LIMIT_BYTES} may be"
        return answer_outcome(Failed("ResultTooLong", reason))
    return written


def read_answer(payload: bytes) -> Mapping[str, Any]:
    """Read what a child said; raise ``Garbled`` when it is no answer at all."""
    try:
        said = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise Garbled("not JSON") from error
    if not isinstance(said, dict):
        raise Garbled("not an object")
    return said


def outcome_in(said: Mapping[str, Any]) -> Outcome:
    """Read what came of an input; raise ``Garbled`` when the answer does not say so."""
    try:
        given = dict(said["fields"])
        if given.get("artifact") is not None:
            given["artifact"] = Artifact(**given["artifact"])
        return storable(_OUTCOMES[said["outcome"]](**given))
    except (KeyError, TypeError, ValueError) as error:
        raise Garbled("no outcome") from error
