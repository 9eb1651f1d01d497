"""A small HTTP client that costs little: requests are bytes made beforehand."""

from __future__ import annotations

import asyncio
import time
from itertools import cycle, islice
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Sequence

_LENGTH = b"content-length:"


class HttpConnection:
    """One connection that is kept."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def exchange(self, request: bytes) -> tuple[int, bytes]:
        """Send a request and give status and body of its answer."""
        self._writer.write(request)
        await self._writer.drain()
        head = await self._reader.readuntil(b"\r\n\r\n")
        status = int(head[9:12])
        lines = [line for line in head.lower().split(b"\r\n") if line.startswith(_LENGTH)]
        length = int(lines[0].removeprefix(_LENGTH)) if lines else 0
        return status, await self._reader.readexactly(length)

    def close(self) -> None:
        """Close it."""
        self._writer.close()


async def connect(url: str) -> HttpConnection:
    """Connect to where a URL points."""
    parts = urlsplit(url)
    return HttpConnection(*await asyncio.open_connection(parts.hostname, parts.port))


def get(path: str, key: str) -> bytes:
    """Make the bytes of a GET."""
    head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {key}\r\n\r\n"
    return head.encode("latin-1")


def post(path: str, key: str, body: bytes, media_type: str = "application/json") -> bytes:
    """Make the bytes of a POST."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: {media_type}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode("latin-1") + body


async def post_all(urls: Sequence[str], request: bytes, *, number: int, clients: int) -> float:
    """Post the request so often, over so many connections; give the seconds it took.

    The connections are spread over the URLs.
    """
    connections = [await connect(url) for url in islice(cycle(urls), clients)]
    left = iter(range(number))

    async def post_from(connection: HttpConnection) -> None:
        for _ in left:
            status, answer = await connection.exchange(request)
            assert status == 202, (status, answer[:500])

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for connection in connections:
            group.create_task(post_from(connection))
    elapsed = time.perf_counter() - began
    for connection in connections:
        connection.close()
    return elapsed


async def post_while(
    url: str, request: bytes, *, clients: int, room: asyncio.Event, stop: asyncio.Event
) -> None:
    """Post the request over and over, over so many connections, until ``stop`` is set.

    Nobody posts while ``room`` is not set.
    """

    async def post_from(connection: HttpConnection) -> None:
        while not stop.is_set():
            status, answer = await connection.exchange(request)
            assert status == 202, (status, answer[:500])
            await room.wait()

    connections = [await connect(url) for _ in range(clients)]
    async with asyncio.TaskGroup() as group:
        for connection in connections:
            group.create_task(post_from(connection))
    for connection in connections:
        connection.close()


class Answer(NamedTuple):
    """When a request was sent, in seconds since 1970, how long it took, and its answer."""

    sent_at: float
    milliseconds: float
    body: bytes


async def post_paced(
    url: str, requests: Sequence[bytes], *, interval_seconds: float
) -> list[Answer]:
    """Post the requests at a steady pace; give the answers in their order."""
    connection = await connect(url)
    answers: list[Answer] = []
    loop = asyncio.get_running_loop()
    due = loop.time()
    for request in requests:
        await asyncio.sleep(max(0.0, due - loop.time()))
        sent_at, began = time.time(), time.perf_counter()
        status, body = await connection.exchange(request)
        assert status == 202, (status, body[:500])
        answers.append(Answer(sent_at, (time.perf_counter() - began) * 1000, body))
        due += interval_seconds
    connection.close()
    return answers
