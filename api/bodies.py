"""Reading request bodies: limited while they stream in, and large ones a few at a time.

While a large body trickles in it waits in a temporary file and takes one of its owner's places,
so that slow clients are in nobody's way but their own owner's. Only what has fully arrived takes
one of the places for the work, which all owners share.
"""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import AsyncExitStack, asynccontextmanager
from http import HTTPStatus
from typing import IO, TYPE_CHECKING

from api.exchange import Exchange
from api.places import Places, PlacesOfOwners
from api.problems import BadField, Problem, unavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request

# Up to here, checking a body takes a few milliseconds: it may be done on the event loop.
SMALL_BYTES = 64 * 1024
# So much is gathered before a thread writes it to the file.
_PIECE_BYTES = 1024 * 1024
_BODY_SECONDS = 120.0
_TURN_SECONDS = 30.0
_REFUSAL = "too many large submissions at once"
_LENGTH_DIGITS = 18


class BodyReader:
    """Reads bodies up to a limit; beyond ``SMALL_BYTES`` only so many at once are in memory."""

    def __init__(self, *, max_body_bytes: int, max_concurrent_large: int) -> None:
        self._max_body_bytes = max_body_bytes
        self._large = Places(max_concurrent_large, wait_seconds=_TURN_SECONDS, refusal=_REFUSAL)
        self._arriving = PlacesOfOwners(
            max_concurrent_large, wait_seconds=_TURN_SECONDS, refusal=_REFUSAL
        )

    @asynccontextmanager
    async def body(
        self, request: Request, *, may_be_absent: bool = False
    ) -> AsyncIterator[bytearray]:
        """Give the whole JSON body; a large one holds one of the few places until the exit.

        Where there may be none, an absent one is empty and needs no type.
        """
        if not (may_be_absent and _is_absent(request)):
            _check_type(request)
        declared = request.headers.get("content-length", "")
        if declared.isascii() and declared.isdigit():
            # As text first: a number of 5,000 digits is not one that Python would read.
            digits = declared.lstrip("0")
            if len(digits) > _LENGTH_DIGITS or int(digits or "0") > self._max_body_bytes:
                raise self._too_large()
        async with AsyncExitStack() as until_exit:
            async with AsyncExitStack() as until_arrived:
                body, spool = await self._receive(request, until_arrived)
                if len(body) > SMALL_BYTES or spool is not None:
                    await until_exit.enter_async_context(self._large.one())
                if spool is not None:
                    body = await asyncio.to_thread(_whole, spool, body)
            yield body

    async def _receive(
        self, request: Request, until_arrived: AsyncExitStack
    ) -> tuple[bytearray, IO[bytes] | None]:
        """Give the end of the body, and the file that holds what came before if there is one."""
        body, size = bytearray(), 0
        spool: IO[bytes] | None = None
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                async for chunk in request.stream():
                    body += chunk
                    size += len(chunk)
                    if size > self._max_body_bytes:
                        raise self._too_large()
                    if size > SMALL_BYTES and spool is None:
                        caller = Exchange.of(request.scope).caller
                        owner_id = caller.owner_id if caller is not None else None
                        await until_arrived.enter_async_context(self._arriving.one(owner_id))
                        spool = until_arrived.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
                    if spool is not None and len(body) >= _PIECE_BYTES:
                        await asyncio.to_thread(spool.write, bytes(body))
                        body.clear()
        except TimeoutError:
            raise _too_slow() from None
        except OSError as error:
            raise unavailable("there is no room for a large submission now") from error
        return body, spool

    def _too_large(self) -> Problem:
        return Problem(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            "too-large",
            f"the body may hold at most {self._max_body_bytes} bytes",
            headers={"Connection": "close"},
        )


def _whole(spool: IO[bytes], end: bytearray) -> bytearray:
    spool.seek(0)
    whole = bytearray(spool.read())
    whole += end
    return whole


def _too_slow() -> Problem:
    return Problem(
        HTTPStatus.REQUEST_TIMEOUT,
        "request-timeout",
        f"the body did not arrive within {_BODY_SECONDS:g} seconds",
        headers={"Connection": "close"},
    )


def _is_absent(request: Request) -> bool:
    """Say whether the head announces no body."""
    headers = request.headers
    return "transfer-encoding" not in headers and headers.get("content-length", "0") == "0"


def _check_type(request: Request) -> None:
    content_type = request.headers.get("content-type", "")
    media_type, _, parameters = content_type.partition(";")
    charset = parameters.strip().lower().replace('"', "")
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if media_type.strip().lower() != "application/json" or charset not in {"", "charset=utf-8"}:
        raise _unsupported("content-type", "must be application/json")
    if encoding != "identity":
        raise _unsupported("content-encoding", "must be absent: the body is read as it is")


def _unsupported(header: str, detail: str) -> Problem:
    return Problem(
        HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
        "unsupported-media-type",
        f"{header} {detail}",
        errors=[BadField("header", header, detail)],
        headers={"Accept-Post": "application/json", "Connection": "close"},
    )
