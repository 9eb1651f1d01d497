"""Clients that read their answers slowly or not at all, over raw sockets."""

import asyncio
from typing import Any, cast

import pytest

from tests.integration.api.test_http_limits import GET, Connect, Stream, answer_to, served
from tests.platform import eventually, stretch

LARGE_BYTES = 8 * 1024 * 1024
PIECE_BYTES = 8 * 1024


async def large(scope: Any, _receive: Any, send: Any) -> None:
    """Answer with more than all buffers on the way take, or with little."""
    body = b"x" * (LARGE_BYTES if scope["path"] == "/large" else 1)
    await begin(send, len(body))
    await send({"type": "http.response.body", "body": body})


async def begin(send: Any, length: int) -> None:
    head = [(b"content-length", str(length).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": head})


async def unread(connect: Connect, request: bytes) -> Stream:
    """Send, and read nothing of the answers."""
    reader, writer = await connect(receive_bytes=2_048)
    transport_of(writer).pause_reading()
    writer.write(request)
    await writer.drain()
    return reader, writer


def transport_of(writer: asyncio.StreamWriter) -> asyncio.Transport:
    return cast(asyncio.Transport, writer.transport)


async def is_served(connect: Connect) -> bool:
    got = await answer_to(await connect(), GET + b"Connection: close\r\n\r\n")
    return got.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("more", [b"", b"Connection: close\r\n"], ids=["kept", "closed"])
async def test_clients_that_do_not_read_their_answers_are_let_go_of(
    more: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    limits = {"connections": 3, "unread_seconds": 0.2, "unread_bytes_per_second": 10**9}
    async with served(large, **limits) as (connect, _):
        request = GET.replace(b"/", b"/large", 1) + more + b"\r\n"
        held = [await unread(connect, request * 3) for _ in range(3)]
        await eventually(lambda: is_served(connect))
        for _, writer in held:
            writer.close()
    assert not [line for line in caplog.records if line.levelname == "ERROR"]


@pytest.mark.parametrize("more", [b"", b"Connection: close\r\n"], ids=["kept", "closed"])
async def test_a_connection_ends_though_nobody_reads_the_little_that_was_left_when_it_closed(
    more: bytes,
) -> None:
    """So little that it does not hold up who writes: nothing but the closing waits for it."""
    fitted: list[int] = []

    async def pieces(scope: Any, _receive: Any, send: Any) -> None:
        many = int(scope["path"].strip("/") or 1)
        await begin(send, many * PIECE_BYTES)
        for number in range(many):
            last = number == many - 1
            body = {"type": "http.response.body", "body": b"x" * PIECE_BYTES, "more_body": not last}
            sending = asyncio.ensure_future(send(body))
            await asyncio.sleep(0)  # what is written goes out when the loop turns
            done, _ = await asyncio.wait({sending}, timeout=0.2)
            if not done:
                fitted.append(number)
                sending.cancel()
                return

    def asking_for(many: int) -> bytes:
        return GET.replace(b"/", b"/%d" % many, 1) + more + b"\r\n"

    limits = {"connections": 4, "keep_alive_seconds": 1, "unread_seconds": 0.5}
    async with served(pieces, unread_bytes_per_second=10**9, **limits) as (connect, _):
        first = await unread(connect, asking_for(LARGE_BYTES // PIECE_BYTES))
        await eventually(lambda: bool(fitted))
        transport_of(first[1]).resume_reading()
        await answer_to(first)
        held = [await unread(connect, asking_for(fitted[0] - less)) for less in (1, 2, 3)]
        await eventually(lambda: is_served(connect))
        for _, writer in held:
            writer.close()


async def test_a_slow_reader_of_a_large_answer_has_the_time_of_a_slow_line() -> None:
    limits = {"unread_seconds": 0.1, "unread_bytes_per_second": 64 * 1024}
    async with served(large, **limits) as (connect, _):
        reader, writer = await unread(connect, GET.replace(b"/", b"/large", 1) + b"\r\n")
        await stretch(0.5)
        transport_of(writer).resume_reading()
        await reader.readuntil(b"\r\n\r\n")
        assert len(await reader.readexactly(LARGE_BYTES)) == LARGE_BYTES
        writer.close()
