"""Reading request bodies: limited while they stream in, and large ones a few at a time."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING

from api.problems import BadField, Problem, unavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request

# Up to here, checking a body takes a few milliseconds: it may be done on the event loop.
SMALL_BYTES = 64 * 1024
_BODY_SECONDS = 120.0
_TURN_SECONDS = 30.0
_LENGTH_DIGITS = 18


class BodyReader:
    """Reads bodies up to a limit; beyond ``SMALL_BYTES`` only so many at once are in memory."""

    def __init__(self, *, max_body_bytes: int, max_concurrent_large: int) -> None:
        self._max_body_bytes = max_body_bytes
        self._large = asyncio.Semaphore(max_concurrent_large)

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
        has_place = False
        body = bytearray()
        try:
            try:
                async with asyncio.timeout(_BODY_SECONDS):
                    async for chunk in request.stream():
                        body += chunk
                        if len(body) > self._max_body_bytes:
                            raise self._too_large()
                        if len(body) > SMALL_BYTES and not has_place:
                            await self._take_place()
                            has_place = True
            except TimeoutError:
                raise _too_slow() from None
            yield body
        finally:
            if has_place:
                self._large.release()

    async def _take_place(self) -> None:
        try:
            async with asyncio.timeout(_TURN_SECONDS):
                await self._large.acquire()
        except TimeoutError:
            raise unavailable("too many large submissions at once", retry_after_seconds=5) from None

    def _too_large(self) -> Problem:
        return Problem(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            "too-large",
            f"the body may hold at most {self._max_body_bytes} bytes",
            headers={"Connection": "close"},
        )


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
