"""What a client may take of the server before anything is known of it, over raw sockets."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from infra.http import serve_http
from infra.http_limits import HttpLimits
from localstack.ports import free_port

GET = b"GET / HTTP/1.1\r\nHost: h\r\n"
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[..., Awaitable[Stream]]


async def echo(scope: Any, receive: Callable[[], Awaitable[Any]], send: Any) -> None:
    if scope["path"] != "/early":
        while (message := await receive())["type"] == "http.request" and message["more_body"]:
            pass
    body = scope["path"].encode()
    head = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def served(app: Any = echo, **limits: Any) -> AsyncIterator[tuple[Connect, asyncio.Event]]:
    port, stop = free_port(), asyncio.Event()

    async def connect(*, receive_bytes: int = 0) -> Stream:
        """Connect, with a small buffer for what is received if one is asked for."""
        client = socket.socket()
        if receive_bytes:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        client.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", port))
        except OSError:
            client.close()
            raise
        return await asyncio.open_connection(sock=client)

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(
            serve_http(app, host="127.0.0.1", port=port, stop=stop, limits=HttpLimits(**limits))
        )
        while True:
            await asyncio.sleep(0)
            try:
                _, writer = await connect()
            except OSError:
                continue
            writer.close()
            break
        yield connect, stop
        stop.set()


async def answer_to(stream: Stream, *pieces: bytes) -> bytes:
    """Send, and read until the server closes the connection."""
    reader, writer = stream
    got = b""
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        got = await reader.read(-1)
    except ConnectionError:
        pass
    finally:
        writer.close()
    return got


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(GET + (b"X: " + b"y" * 400 + b"\r\n") * 95, id="long fields"),
        pytest.param(GET + b"X:\r\n" * 220, id="many fields"),
        pytest.param(GET + b"X: " + b"y" * 38_000, id="one unfinished value"),
        pytest.param(GET + b"X" * 38_000, id="one unfinished name"),
        pytest.param(b"GET /" + b"y" * 38_000, id="an unfinished address"),
        pytest.param(GET + b"X: " + b"y" * 38_000 + b"\r\n\r\n", id="one whole value"),
    ],
)
async def test_a_head_beyond_the_limit_is_refused_before_it_ends(head: bytes) -> None:
    async with served(head_seconds=60) as (connect, _):
        assert (await answer_to(await connect(), head)).startswith(b"HTTP/1.1 431 ")


async def test_a_head_that_never_ends_ends_the_connection() -> None:
    async with served(head_seconds=60) as (connect, _):
        reader, writer = await connect()
        writer.write(GET)
        with pytest.raises(ConnectionError):  # noqa: PT012 - any of these writes meets it
            while True:
                writer.write(b"X: y\r\n" * 1_000)
                await writer.drain()
        writer.close()
        del reader


async def test_a_head_within_the_limit_is_served_however_it_is_cut() -> None:
    head = GET + b"X: " + b"y" * 30_000 + b"\r\nConnection: close\r\n\r\n"
    async with served() as (connect, _):
        for size in (1_000, len(head)):
            pieces = [head[at : at + size] for at in range(0, len(head), size)]
            assert (await answer_to(await connect(), *pieces)).startswith(b"HTTP/1.1 200 ")


async def test_trailers_and_chunk_extensions_without_end_are_refused() -> None:
    chunked = b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with served(head_seconds=60) as (connect, _):
        for more in (b"0\r\n" + b"X: y\r\n" * 20_000, b"1;" + b"e" * 150_000):
            await answer_to(await connect(), chunked, more[:9_000], more[9_000:])


async def test_a_head_that_does_not_end_in_time_is_given_up() -> None:
    async with served(head_seconds=0.2) as (connect, _):
        assert (await answer_to(await connect(), GET)).startswith(b"HTTP/1.1 408 ")
        assert await answer_to(await connect()) == b""
        assert await answer_to(await connect(), b"\r\n") == b""
        got = await answer_to(await connect(), GET + b"\r\n", b"\r\n")
        assert got.startswith(b"HTTP/1.1 200 ")


async def test_the_rest_of_a_body_is_not_awaited_for_ever_after_its_answer() -> None:
    head = b"POST /early HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n12"
    async with served(head_seconds=0.2, keep_alive_seconds=60) as (connect, _):
        assert (await answer_to(await connect(), head)).startswith(b"HTTP/1.1 200 ")


async def test_a_slow_body_outlives_the_limit_of_the_head() -> None:
    async with served(head_seconds=0.1) as (connect, _):
        reader, writer = await connect()
        writer.write(b"POST /b HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n1")
        # Another connection's limit, begun later, passes meanwhile.
        assert await answer_to(await connect()) == b""
        writer.write(b"2")
        assert (await reader.readuntil(b"/b")).startswith(b"HTTP/1.1 200 ")
        writer.close()


async def test_pipelined_requests_and_kept_connections_are_served_in_order() -> None:
    async with served() as (connect, _):
        reader, writer = await connect()
        for _ in range(3):
            writer.write(b"".join(b"GET /%d HTTP/1.1\r\nHost: h\r\n\r\n" % n for n in range(500)))
            for number in range(500):
                head = await reader.readuntil(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 200 ")
                assert await reader.readexactly(len(f"/{number}")) == b"/%d" % number
        writer.close()


async def test_beyond_the_most_connections_a_request_is_told_to_come_back() -> None:
    async with served(connections=3) as (connect, _):
        held = [await connect() for _ in range(3)]
        got = await answer_to(await connect(), GET + b"Connection: close\r\n\r\n")
        assert got.startswith(b"HTTP/1.1 503 ")
        for _, writer in held:
            writer.close()


async def test_a_stop_finishes_the_open_request_and_ends_idle_connections() -> None:
    entered, leave = asyncio.Event(), asyncio.Event()

    async def waiting(scope: Any, receive: Any, send: Any) -> None:
        entered.set()
        await leave.wait()
        await echo(scope, receive, send)

    async with served(waiting) as (connect, stop):
        idle, (reader, writer) = await connect(), await connect()
        writer.write(GET + b"\r\n")
        await entered.wait()
        stop.set()
        assert await answer_to(idle) == b""
        leave.set()
        assert (await reader.read(-1)).startswith(b"HTTP/1.1 200 ")
        writer.close()
