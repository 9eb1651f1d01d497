"""Reading request bodies: limited while they stream in, and large ones a few at a time.

While a large body trickles in, it takes one of its owner's places, and what is beyond a megabyte
of it waits in a temporary file: slow clients are in nobody's way but their own owner's. Only what
has fully arrived takes one of the places for the work, which all owners share, and of which one
owner has half at most.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from io import BytesIO
from typing import IO, TYPE_CHECKING

from api.exchange import Exchange
from api.places import Places, PlacesOfOwners
from api.problems import BadField, Problem
from api.scratch import discard, open_scratch, scratching

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from uuid import UUID

    from starlette.requests import Request

# Up to here, checking a body takes a few milliseconds: it may be done on the event loop.
SMALL_BYTES = 64 * 1024
# So much is gathered before a thread writes it to the file; what is smaller needs none.
_PIECE_BYTES = 1024 * 1024
_BODY_SECONDS = 120.0
_STREAM_SECONDS = 900.0
_TURN_SECONDS = 30.0
_OWN_TURN_SECONDS = 120.0
_REFUSAL = "too many large submissions at once"
_LENGTH_DIGITS = 18
_JSON = "application/json"
_LINES = "application/x-ndjson"


@dataclass(frozen=True, slots=True)
class Body:
    """A body that arrived whole; closing the file removes it."""

    file: IO[bytes]
    size: int
    has_lines: bool


class BodyReader:
    """Reads bodies up to a limit; beyond ``SMALL_BYTES`` only so many at once are worked on.

    Bodies of lines are taken where there is a ``max_stream_bytes``, which is their limit.
    """

    def __init__(
        self, *, max_body_bytes: int, max_concurrent_large: int, max_stream_bytes: int | None = None
    ) -> None:
        self._max_body_bytes = max_body_bytes
        self._max_stream_bytes = max_stream_bytes
        self._large = Places(max_concurrent_large, wait_seconds=_TURN_SECONDS, refusal=_REFUSAL)
        # Half of them at most are one owner's: its others wait for it, and nobody else does.
        self._large_of_owners = PlacesOfOwners(
            max(max_concurrent_large // 2, 1), wait_seconds=_OWN_TURN_SECONDS, refusal=_REFUSAL
        )
        self._arriving = PlacesOfOwners(
            max_concurrent_large, wait_seconds=_TURN_SECONDS, refusal=_REFUSAL
        )

    @asynccontextmanager
    async def body(self, request: Request, *, may_be_absent: bool = False) -> AsyncIterator[Body]:
        """Give the whole body; a large one holds one of the few places until the exit.

        Where there may be none, an absent one is empty and needs no type.
        """
        most, seconds, has_lines = self._max_body_bytes, _BODY_SECONDS, False
        if not (may_be_absent and _is_absent(request)):
            has_lines = _check_type(request, may_have_lines=self._max_stream_bytes is not None)
        if has_lines and self._max_stream_bytes is not None:
            most, seconds = self._max_stream_bytes, _STREAM_SECONDS
        declared = request.headers.get("content-length", "")
        if declared.isascii() and declared.isdigit():
            # As text first: a number of 5,000 digits is not one that Python would read.
            digits = declared.lstrip("0")
            if len(digits) > _LENGTH_DIGITS or int(digits or "0") > most:
                raise _too_large(most)
            if int(digits or "0") <= SMALL_BYTES:
                # The server reads no more than was declared: nothing below is needed.
                whole = await _whole(request, seconds)
                yield Body(BytesIO(whole), len(whole), has_lines=has_lines)
                return
        async with AsyncExitStack() as until_exit:
            async with AsyncExitStack() as until_arrived:
                file, size = await self._receive(request, until_arrived, most, seconds)
                until_exit.enter_context(file)
                if size > SMALL_BYTES:
                    own = self._large_of_owners.one(_owner_id(request))
                    await until_exit.enter_async_context(own)
                    await until_exit.enter_async_context(self._large.one())
            yield Body(file, size, has_lines=has_lines)

    async def _receive(
        self, request: Request, until_arrived: AsyncExitStack, most: int, seconds: float
    ) -> tuple[IO[bytes], int]:
        """Give the whole body, at its beginning, and its size in bytes."""
        body, size = bytearray(), 0
        spool: IO[bytes] | None = None
        async with AsyncExitStack() as unless_whole:
            try:
                async with asyncio.timeout(seconds):
                    async for chunk in request.stream():
                        body += chunk
                        before, size = size, size + len(chunk)
                        if size > most:
                            raise _too_large(most)
                        if before <= SMALL_BYTES < size:
                            own = self._arriving.one(_owner_id(request))
                            await until_arrived.enter_async_context(own)
                        if len(body) >= _PIECE_BYTES:
                            if spool is None:
                                with scratching():
                                    spool = open_scratch()
                                unless_whole.callback(discard, spool)
                            await asyncio.to_thread(_write, spool, bytes(body))
                            body.clear()
            except TimeoutError:
                raise _too_slow(seconds) from None
            if spool is None:
                return BytesIO(body), size
            await asyncio.to_thread(_write, spool, bytes(body))
            spool.seek(0)
            unless_whole.pop_all()
            return spool, size


def _owner_id(request: Request) -> UUID | None:
    caller = Exchange.of(request.scope).caller
    return None if caller is None else caller.owner_id


async def _whole(request: Request, seconds: float) -> bytes:
    try:
        async with asyncio.timeout(seconds):
            return await request.body()
    except TimeoutError:
        raise _too_slow(seconds) from None


def _write(spool: IO[bytes], piece: bytes) -> None:
    with scratching():
        spool.write(piece)
        spool.flush()


def _too_large(most: int) -> Problem:
    return Problem(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        "too-large",
        f"the body may hold at most {most} bytes",
        headers={"Connection": "close"},
    )


def _too_slow(seconds: float) -> Problem:
    return Problem(
        HTTPStatus.REQUEST_TIMEOUT,
        "request-timeout",
        f"the body did not arrive within {seconds:g} seconds",
        headers={"Connection": "close"},
    )


def _is_absent(request: Request) -> bool:
    """Say whether the head announces no body."""
    headers = request.headers
    return "transfer-encoding" not in headers and headers.get("content-length", "0") == "0"


def _check_type(request: Request, *, may_have_lines: bool) -> bool:
    """Refuse what is no JSON; say whether it is a text for each line."""
    types = [_JSON, _LINES] if may_have_lines else [_JSON]
    content_type = request.headers.get("content-type", "")
    media_type, _, parameters = content_type.partition(";")
    charset = parameters.strip().lower().replace('"', "")
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    media_type = media_type.strip().lower()
    if media_type in types and charset not in {"", "charset=utf-8"}:
        raise _unsupported("content-type", "may have no parameter but charset=utf-8", types)
    if media_type not in types:
        raise _unsupported("content-type", f"must be {' or '.join(types)}", types)
    if encoding != "identity":
        raise _unsupported("content-encoding", "must be absent: the body is read as it is", types)
    return media_type == _LINES


def _unsupported(header: str, detail: str, types: list[str]) -> Problem:
    return Problem(
        HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
        "unsupported-media-type",
        f"{header} {detail}",
        errors=[BadField("header", header, detail)],
        headers={"Accept-Post": ", ".join(types), "Connection": "close"},
    )
