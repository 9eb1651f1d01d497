"""The places for large bodies: few, and not one owner's."""

import asyncio
from uuid import UUID

from starlette.requests import Request
from starlette.types import Message

from api.auth import Caller
from api.bodies import SMALL_BYTES, BodyReader
from api.exchange import Exchange
from schema.ids import uuid7
from schema.message import Trace

LARGE = b"x" * (SMALL_BYTES + 1)


def request_of(owner_id: UUID) -> Request:
    scope = {"type": "http", "headers": [(b"content-type", b"application/json")]}
    exchange = Exchange(Trace("request"))
    exchange.caller = Caller(owner_id, "owner", is_admin=False)
    exchange.attach(scope)

    async def receive() -> Message:
        return {"type": "http.request", "body": LARGE, "more_body": False}

    return Request(scope, receive)


async def test_large_bodies_of_one_owner_leave_places_to_others() -> None:
    reader = BodyReader(max_body_bytes=2 * SMALL_BYTES, max_concurrent_large=4)
    busy, other = uuid7(), uuid7()
    began, done = asyncio.Semaphore(0), asyncio.Event()
    at_work = 0

    async def work(owner_id: UUID) -> None:
        nonlocal at_work
        async with reader.body(request_of(owner_id)) as body:
            assert body.size == len(LARGE)
            at_work += 1
            began.release()
            await done.wait()

    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        for _ in range(8):
            group.create_task(work(busy))
        for _ in range(2):
            await began.acquire()
        async with reader.body(request_of(other)) as body:
            assert body.size == len(LARGE)
            assert at_work == 2
        done.set()
    assert at_work == 8
