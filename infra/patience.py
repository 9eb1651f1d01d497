"""Waiting for a neighbour for so long, and not a moment longer."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Collection

Result = TypeVar("Result")

_LOCK_SECONDS = 1.0
_LEAST_COMMIT_SECONDS = 5.0
_LOCKS_TO_A_LEASE = 20
_LEAST_LOCK_SECONDS = 0.005

# The loop itself holds tasks weakly.
_under_way: set[asyncio.Future[Any]] = set()


def lock_seconds(*, lease_seconds: float) -> float:
    """Say how long who holds leases waits for a row: none can be extended while it is locked."""
    return min(_LOCK_SECONDS, lease_seconds / _LOCKS_TO_A_LEASE)


def commit_seconds(*, lease_seconds: float) -> float:
    """Say how long who holds leases waits for a commit: a silent session must leave time for more.

    It may be carried out all the same, so short leases do not make it shorter than it may take.
    """
    return max(_LEAST_COMMIT_SECONDS, lease_seconds / 3)


def shortened(lock_seconds: float, share: float = 0.5) -> float:
    """Give what is left of the patience for further rows, once one was waited for in vain.

    However many are in other hands, they cost a round little more than the first.
    """
    return max(_LEAST_LOCK_SECONDS, lock_seconds * share)


async def within(seconds: float, work: Awaitable[Result]) -> Result:
    """Give what comes of ``work``; raise ``TimeoutError`` when nothing does in time.

    It is cancelled then, and not waited for: to give up on a silent neighbour, as by closing its
    connection, may itself take seconds.
    """
    doing = asyncio.ensure_future(work)
    _under_way.add(doing)
    doing.add_done_callback(_ended)
    try:
        await first_of([doing], seconds)
    finally:
        doing.cancel()
    if not doing.done():
        raise TimeoutError
    return doing.result()


async def first_of(futures: Collection[asyncio.Future[Any]], seconds: float) -> None:
    """Return once one of the futures is done, or so many seconds have passed; cancel none.

    What ``asyncio.wait`` comes to, which costs as much as the rest of a wait for Postgres.
    """
    loop = asyncio.get_running_loop()
    over = loop.create_future()
    end = partial(_end, over)
    for future in futures:
        future.add_done_callback(end)
    timer = loop.call_later(seconds, end)
    try:
        await over
    finally:
        timer.cancel()
        for future in futures:
            future.remove_done_callback(end)


def _end(over: asyncio.Future[None], _of: object = None) -> None:
    if not over.done():
        over.set_result(None)


def _ended(doing: asyncio.Future[Any]) -> None:
    _under_way.discard(doing)
    if not doing.cancelled():
        # Looked at, lest an error that nobody waited for is logged as an oversight.
        doing.exception()
