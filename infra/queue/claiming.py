"""Claims on their way from Postgres into a consumer's hands, and those that may be lost there."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator, Sequence

    from sqlalchemy import Row

    from infra.database import Database
    from schema.statements.bound import Bound


Result = TypeVar("Result")


class Claiming:
    """Runs the claim statements of a process; knows which calls are under way, and what failed.

    None waits longer than a third of a lease: one that is silent would fail when it is too late.
    """

    def __init__(self, database: Database, *, lease_seconds: float) -> None:
        self._database = database
        self._patience_seconds = lease_seconds / 3
        self._under_way: set[asyncio.Event] = set()
        # A claim failed; it may be committed all the same, now or in a while.
        self.failed = asyncio.Event()

    async def fetch(self, statement: Bound) -> Sequence[Row[Any]]:
        """Run a claim statement, and note if it fails, whoever catches that."""
        try:
            return await self.answered(self._database.fetch(statement))
        except BaseException:
            self.failed.set()
            raise

    async def answered(self, work: Awaitable[Result]) -> Result:
        """Give what Postgres answers to what claims nothing, in the same time."""
        return await self._database.answered_within(self._patience_seconds, work)

    @contextmanager
    def call(self) -> Iterator[None]:
        """Have what is claimed inside the block count as under way until it is handed over."""
        ended = asyncio.Event()
        self._under_way.add(ended)
        try:
            yield
        finally:
            self._under_way.discard(ended)
            ended.set()

    async def calls_end(self) -> None:
        """Return when the calls that are under way now have ended."""
        for call in list(self._under_way):
            await call.wait()
