"""Clients that send slowly, over raw sockets: they are in nobody's way but their own owner's."""

import asyncio
import json

import pytest

from infra.database import Database
from infra.http import serve_http
from localstack.ports import free_port
from tests.integration.api.conftest import AddKey, application
from tests.platform import Platform

JSON, LINES = "application/json", "application/x-ndjson"


def head(key: str, length: int, media_type: str) -> bytes:
    return (
        f"POST /jobs HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {key}\r\nConnection: close\r\n"
        f"Content-Type: {media_type}\r\nContent-Length: {length}\r\n"
        "Expect: 100-continue\r\n\r\n"
    ).encode()


async def begin(
    port: int, key: str, body: bytes, media_type: str, *, sent: int
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head(key, len(body), media_type))
    assert b" 100 " in await reader.readuntil(b"\r\n\r\n")
    writer.write(body[:sent])
    await writer.drain()
    return reader, writer


@pytest.mark.parametrize("media_type", [JSON, LINES])
async def test_slow_bodies_of_one_owner_hold_up_no_other_owner(
    database: Database, database_url: str, add_key: AddKey, platform: Platform, media_type: str
) -> None:
    slow_key, other_key = await add_key(owner="slow"), await add_key(owner="other")
    texts = [{"text": f"{number}{'x' * 10_000}"} for number in range(200)]
    if media_type == LINES:
        body = "\n".join(map(json.dumps, [{"kind": "note"}, *texts])).encode()
    else:
        body = json.dumps({"kind": "note", "inputs": texts}).encode()
    port, stop = free_port(), asyncio.Event()
    app = application(database, database_url, max_concurrent_submissions=2)
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(serve_http(app, host="127.0.0.1", port=port, stop=stop))
        await asyncio.sleep(0)
        slow = [await begin(port, slow_key, body, media_type, sent=1_500_000) for _ in range(4)]
        async with asyncio.timeout(20):
            reader, writer = await begin(port, other_key, body, media_type, sent=len(body))
            assert b" 202 " in await reader.readline()
            writer.close()
        # Nothing in the database waits for the slow ones.
        waiting = "state LIKE 'idle in transaction%' AND datname = current_database()"
        assert not await platform.rows(f"SELECT pid FROM pg_stat_activity WHERE {waiting}")
        # And what was slow is read whole in the end, those that waited for a place included.
        for _, writer in slow:
            writer.write(body[1_500_000:])
        for reader, _ in slow:
            assert b" 202 " in await reader.readline()
        for _, writer in slow:
            writer.close()
        stop.set()
