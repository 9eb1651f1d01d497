"""Delivery without SQS: consumers claim ready entries straight from Postgres."""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING

from infra.pauses import Pauses
from infra.queue.claiming import Claiming
from infra.queue.protocol import NOTHING, Claim, Unwanted
from infra.queue.singly import claim_singly
from infra.retry import is_of_a_row, sleep_unless
from infra.row_by_row import RowByRow
from infra.telemetry import names
from infra.telemetry.instruments import SILENT
from schema.statements.claim import claim_by_id, claim_ready, next_ready, ready_in_turn
from schema.statements.relay import PROMOTED_AT_ONCE, promote_due
from schema.statements.turns import FIRST_TURN

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from typing import Any
    from uuid import UUID

    from sqlalchemy import Row

    from infra.database import Database
    from infra.telemetry.instruments import Instruments
    from infra.wakeup import Listener

# No wake-up tells when something is wanted again.
_UNWANTED_SECONDS = 0.25
# Where claim comes after claim, with no time to look for what is due.
_LETTING_IN_SECONDS = 0.25
# What was claimed begins before it is looked for more, where there was no more just now.
_BREATH_SECONDS = 0.005
# Turns of the loop until an input that costs nothing is processed and its settling under way.
_BREATH_TURNS = 12


class OutboxQueue:
    """Claims ready entries, owners in turn; sleeps until one is due or a wake-up comes."""

    def __init__(
        self,
        database: Database,
        listener: Listener,
        *,
        worker: str,
        kinds: Sequence[str],
        lease_seconds: float,
        poll_floor_seconds: float,
        instruments: Instruments = SILENT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._tracing = instruments.tracing
        self._database = database
        self.claiming = Claiming(database, lease_seconds=lease_seconds)
        self._woken = listener.wakes()
        self._worker = worker
        self._kinds = tuple(kinds)
        self._lease_seconds = lease_seconds
        self._pauses = Pauses(most_seconds=poll_floor_seconds)
        self._turn = FIRST_TURN
        self._rows = RowByRow(database, doing="promote")
        # False after a claim that brought less than it asked for: look before the next one, unless
        # there is a wake-up.
        self._may_be_ready = True
        # When the next claim lets in what was to wait and is due, by its clock.
        self._let_in_at = 0.0
        self._claiming = asyncio.Lock()

    async def claim(
        self, most: int, stop: asyncio.Event, unwanted: Unwanted = NOTHING
    ) -> Sequence[Claim]:
        """Claim up to ``most`` ready entries, waiting at most the poll floor for the first.

        One caller after the other, the wait included: a claim that does not know where the last
        one ended would go back, and one wake-up is no reason for two claims.
        """
        async with self._claiming:
            if stop.is_set():
                return ()
            if not self._may_be_ready:
                for _ in range(_BREATH_TURNS):
                    await asyncio.sleep(0)
                await sleep_unless(stop, self._woken)(_BREATH_SECONDS)
                self._may_be_ready = self._woken.is_set()
                if stop.is_set():
                    return ()
            if self._may_be_ready:
                self._woken.clear()
                if claims := await self._claim_now(most, unwanted):
                    return claims
            look = next_ready(kinds=self._wanted(unwanted), shunned=self._shunned(unwanted))
            rows = await self.claiming.answered(self._database.fetch(look))
            dues = [float(row.seconds) for row in rows]
            later = [float(row.seconds) for row in rows if row.deferred]
            self._let_in_at = self._clock() + min(later, default=math.inf)
            if self._may_be_ready or all(due_seconds > 0 for due_seconds in dues):
                rest = self._pauses.seconds(dues)
                if unwanted.kinds or unwanted.jobs:
                    rest = min(rest, _UNWANTED_SECONDS)
                await sleep_unless(stop, self._woken)(rest)
                self._woken.clear()
            self._may_be_ready = True
            return () if stop.is_set() else await self._claim_now(most, unwanted)

    def _wanted(self, unwanted: Unwanted) -> Sequence[str]:
        full = unwanted.kinds
        return tuple(kind for kind in self._kinds if kind not in full) if full else self._kinds

    def _shunned(self, unwanted: Unwanted) -> Collection[UUID]:
        at_fault = self._rows.shunned()
        return {*unwanted.jobs, *at_fault} if at_fault else unwanted.jobs

    async def _claim_rows(self, most: int, unwanted: Unwanted) -> Sequence[Row[Any]]:
        statement = claim_ready(
            self._worker,
            self._lease_seconds,
            kinds=self._wanted(unwanted),
            most=most,
            turn=self._turn,
            shunned=self._shunned(unwanted),
        )
        try:
            rows = await self.claiming.fetch(statement)
        except Exception as error:
            if not is_of_a_row(error):
                raise
            return await self._claim_singly(most, unwanted)
        self._turn = self._turn.after(rows, most=most)
        return rows

    async def _claim_singly(self, most: int, unwanted: Unwanted) -> Sequence[Row[Any]]:
        """Claim the entries whose turn it is but those that are at fault, and pass over these."""
        look = ready_in_turn(
            kinds=self._wanted(unwanted),
            most=most,
            turn=self._turn,
            shunned=self._shunned(unwanted),
        )
        ready = await self.claiming.answered(self._database.fetch(look))
        self._turn = self._turn.after(ready)
        jobs = {row.id: row.job_id for row in ready}
        claimed = await claim_singly(
            jobs,
            lambda entry_id: self.claiming.fetch(
                claim_by_id(self._worker, self._lease_seconds, [entry_id], waits=False)
            ),
        )
        self._rows.shun(*(jobs[entry_id] for entry_id in claimed.unclaimable))
        return claimed.rows

    async def _claim_now(self, most: int, unwanted: Unwanted) -> Sequence[Claim]:
        began = time.monotonic()
        with self.claiming.call():
            if self._clock() >= self._let_in_at:
                await self._let_in()
            rows = await self._claim_rows(most, unwanted)
            claims = [Claim.from_row(row, began) for row in rows]
        if claims:
            # Fewer than asked for: the rest is in other hands, or there is none.
            self._may_be_ready = len(claims) >= most
            self._let_in_at = min(self._let_in_at, self._clock() + _LETTING_IN_SECONDS)
            self._pauses.took()
            # A poll that brings nothing is no event.
            with self._tracing.together(
                names.RECEIVE,
                (claim.trace for claim in claims),
                attributes={names.MESSAGING_BATCH_COUNT: len(claims)},
                began=began,
            ):
                pass
        return claims

    async def _let_in(self) -> None:
        rows = await self.claiming.answered(self._rows.fetch(promote_due()))
        is_all = len(rows) < PROMOTED_AT_ONCE
        self._let_in_at = self._clock() + (_LETTING_IN_SECONDS if is_all else 0.0)

    async def claim_rest(
        self,
        stop: asyncio.Event,  # noqa: ARG002
        unwanted: Unwanted = NOTHING,  # noqa: ARG002
    ) -> Sequence[Claim]:
        """Give nothing: a claim leaves nothing beside."""
        return ()

    async def extend(self, claims: Sequence[Claim], lease_seconds: float) -> None:
        """Do nothing: the lease in Postgres is the delivery."""

    async def acknowledge(self, claims: Sequence[Claim]) -> None:
        """Do nothing: the settled entry is gone."""

    def abandon(self, claim: Claim) -> None:
        """Do nothing: nothing is remembered of a claim."""

    async def ping(self) -> None:
        """Return when the database answers."""
        await self._database.ping()
