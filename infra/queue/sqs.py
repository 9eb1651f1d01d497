"""Delivery through SQS: long-poll, claim in Postgres, keep hidden while work runs, delete last."""

from __future__ import annotations

import asyncio
import json
import math
import time
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import structlog

from infra.clients import speaking_plainly
from infra.patience import lock_seconds
from infra.queue.claiming import Claiming
from infra.queue.limits import BATCH_LIMIT, left_seconds
from infra.queue.protocol import NOTHING, Claim, Unwanted
from infra.queue.receipts import Delivery, Receipts
from infra.queue.received import Polled, Received, received
from infra.queue.singly import Singly, claim_singly
from infra.retry import is_lock_timeout, is_of_a_row, jittered, sleep_unless
from infra.telemetry import names
from infra.telemetry.instruments import SILENT
from schema.errors import HaulageError
from schema.statements.claim import claim_by_id, let_go_of_entries, list_claimable
from schema.statements.repair import park_messages

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from uuid import UUID

    from sqlalchemy import Row
    from types_aiobotocore_sqs import SQSClient

    from infra.database import Database
    from infra.telemetry.instruments import Instruments
    from schema.message import Message

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_PACE_CAP_SECONDS = 2.0
# How long it takes another consumer to start a job grows with what it claims of it.
_STARTING_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16)
# Others may take them; those that nobody wants now must not go round and round.
_UNWANTED_SECONDS = 5


class SqsQueue:
    """Turns messages into claims; remembers the newest receipt of each claim that is held.

    Claims are handed over at once: what came beside them is seen to before the next poll. No call
    waits longer than a third of a lease where others wait for it.

    A claim is (entry, epoch): the same entry may be claimed again before an earlier claim of it,
    which was given back, is acknowledged.
    """

    def __init__(
        self,
        client: SQSClient,
        receiving: SQSClient,
        database: Database,
        *,
        queue_url: str,
        worker: str,
        kinds: Collection[str],
        lease_seconds: float,
        wait_seconds: int,
        calls_at_once: int,
        unknown_kind_delay_seconds: int,
        instruments: Instruments = SILENT,
    ) -> None:
        self._instruments = instruments
        self._client = client
        self._receiving = receiving
        self._database = database
        self.claiming = Claiming(database, lease_seconds=lease_seconds)
        self._queue_url = queue_url
        self._worker = worker
        self._kinds = frozenset(kinds)
        self._lease_seconds = lease_seconds
        self._lock_seconds = lock_seconds(lease_seconds=lease_seconds)
        self._wait_seconds = wait_seconds
        self._receipts = Receipts(
            client,
            queue_url=queue_url,
            patience_seconds=lease_seconds / 3,
            calls_at_once=calls_at_once,
        )
        self._unknown_kind_delay_seconds = unknown_kind_delay_seconds
        self._held: dict[tuple[int, int], Delivery] = {}
        # One for each receiver at most: whoever polls next sees to all of them.
        self._unseen: list[Polled] = []
        self._empty_at_once = 0
        self._has_failed = False

    async def claim(
        self, most: int, stop: asyncio.Event, unwanted: Unwanted = NOTHING
    ) -> Sequence[Claim]:
        """Finish one long poll and claim what it brought, even when ``stop`` is set meanwhile."""
        if self._has_failed:
            # Messages that come while the database is away would be received in vain, and that
            # is counted; an empty poll would look as if the database were back.
            await self.claiming.answered(self._database.ping())
            self._has_failed = False
        try:
            return await self._poll(most, stop, unwanted)
        except Exception:
            self._has_failed = True
            raise

    async def claim_rest(
        self, stop: asyncio.Event, unwanted: Unwanted = NOTHING
    ) -> Sequence[Claim]:
        """Ask once more for what another consumer was starting, and see to what is left then."""
        try:
            while self._unseen:
                polled = self._unseen.pop()
                if stop.is_set():
                    await self._see_to(polled, unwanted)
                elif claims := await self._take(polled, unwanted):
                    return claims
        except Exception:
            self._has_failed = True
            raise
        return ()

    async def _poll(self, most: int, stop: asyncio.Event, unwanted: Unwanted) -> Sequence[Claim]:
        began = time.monotonic()
        polled = await self._receive(min(most, BATCH_LIMIT), unwanted)
        if polled.many:
            self._empty_at_once = 0
        else:
            await self._pace(time.monotonic() - began, stop)
        return await self._take(polled, unwanted)

    async def _take(self, polled: Polled, unwanted: Unwanted) -> Sequence[Claim]:
        """Claim what a poll brought, and hand it over at once; see to what cannot be claimed."""
        # A poll that brings nothing is no event, and waiting for one is no work.
        with self.claiming.call():
            claims = await self._claim_from(polled, unwanted) if polled.deliveries else ()
        if claims:
            self._unseen += [polled] if polled.left else []
        elif polled.left:
            await self._see_to(polled, unwanted)
        return claims

    async def _claim_from(self, polled: Polled, unwanted: Unwanted) -> Sequence[Claim]:
        deliveries = polled.deliveries
        with self._instruments.tracing.together(
            names.RECEIVE,
            (delivery.message.trace for delivery in deliveries.values()),
            attributes={names.MESSAGING_BATCH_COUNT: len(deliveries)},
        ) as span:
            try:
                claims = await self._claim(polled, unwanted)
                for seconds in _STARTING_SECONDS:
                    if claims or not await self._are_being_started(polled.wanted(unwanted.jobs)):
                        break
                    await asyncio.sleep(seconds)
                    claims = await self._claim(polled, unwanted, waits=False)
            except HaulageError:
                # The messages come back at once; what was claimed all the same is found again.
                await self._receipts.hide([(delivery, 0) for delivery in deliveries.values()])
                raise
            span.set_attribute(names.DUPLICATES, len(deliveries))
        return claims

    async def _are_being_started(self, wanted: Mapping[int, UUID]) -> bool:
        """Say whether any is still to be claimed: another consumer has the row of its new job."""
        if not wanted:
            return False
        look = self._database.fetch(list_claimable(wanted, kinds=self._kinds))
        return bool(await self.claiming.answered(look))

    async def _claim(
        self, polled: Polled, unwanted: Unwanted, *, waits: bool = True
    ) -> Sequence[Claim]:
        """Claim what the messages point at, and take these messages out of ``deliveries``.

        Those of shunned jobs stay there: they go back to Postgres, to be sent after a moment.
        """
        deliveries = polled.deliveries
        wanted = polled.wanted(unwanted.jobs)
        if not wanted:
            return ()
        asked_at = time.monotonic()
        rows, unclaimable = await self._claim_rows(wanted, waits=waits)
        claims = [Claim.from_row(row, asked_at) for row in rows]
        for claim in claims:
            self._held[_key(claim)] = deliveries.pop(claim.entry_id)
        polled.unwanted += [deliveries.pop(entry_id) for entry_id in unclaimable]
        return claims

    async def _claim_rows(self, wanted: Mapping[int, UUID], *, waits: bool) -> Singly:
        """Claim entries by their ids; one that somebody holds costs the others a moment."""
        try:
            return Singly(await self._claim_together(wanted, waits=waits), ())
        except Exception as error:
            if not is_of_a_row(error):
                raise
        return await claim_singly(
            wanted, lambda entry_id: self._claim_together({entry_id: wanted[entry_id]}, waits=waits)
        )

    async def _claim_together(
        self, wanted: Mapping[int, UUID], *, waits: bool
    ) -> Sequence[Row[Any]]:
        claim = partial(
            claim_by_id,
            self._worker,
            self._lease_seconds,
            list(wanted),
            job_ids=list(wanted.values()),
            kinds=list(self._kinds),
            lock_seconds=self._lock_seconds,
        )
        try:
            if waits:
                return await self.claiming.fetch(claim())
        except HaulageError as error:
            if not is_lock_timeout(error):
                raise
        return await self.claiming.fetch(claim(waits=False))

    async def _pace(self, elapsed_seconds: float, stop: asyncio.Event) -> None:
        """Slow down after polls that were empty at once, as SQS is at its in-flight limit."""
        if elapsed_seconds >= self._wait_seconds / 2 > 0:
            self._empty_at_once = 0
            return
        self._empty_at_once += 1
        await sleep_unless(stop)(
            jittered(self._empty_at_once, base_seconds=0.05, cap_seconds=_PACE_CAP_SECONDS)
        )

    async def _receive(self, most: int, unwanted: Unwanted) -> Polled:
        with speaking_plainly("sqs"):
            answer = await self._receiving.receive_message(
                QueueUrl=self._queue_url,
                MaxNumberOfMessages=most,
                WaitTimeSeconds=self._wait_seconds,
                VisibilityTimeout=math.ceil(self._lease_seconds),
                MessageAttributeNames=["All"],
                MessageSystemAttributeNames=["ApproximateReceiveCount", "SentTimestamp"],
            )
            messages = [received(raw) for raw in answer.get("Messages", ())]
        now = time.monotonic()
        polled = Polled(len(messages))
        for each in messages:
            message = each.message
            if message is None:
                polled.foreign.append(each)
                continue
            delivery = Delivery(each.handle, now, message, each.receive_count)
            if message.kind not in self._kinds:
                polled.early.append(delivery)
            elif message.kind in unwanted.kinds:
                polled.unwanted.append(delivery)
            elif message.entry_id in polled.deliveries:
                polled.again.append(delivery)
            else:
                polled.deliveries[message.entry_id] = delivery
        return polled

    async def _see_to(self, polled: Polled, unwanted: Unwanted) -> None:
        """Do what is to be done about messages without a claim; if it fails they come back."""
        left = polled.left
        try:
            async with asyncio.timeout(self._lease_seconds / 3):
                if polled.foreign:
                    await self._park(polled.foreign)
                if polled.early:
                    await self._put_off(polled.early)
                await self._leave_to_others(polled.unwanted, _UNWANTED_SECONDS)
                await self._receipts.delete([delivery.handle for delivery in polled.again])
                await self._let_go(polled.deliveries, unwanted)
        except Exception as error:  # noqa: BLE001 - one bad message must not end the polls
            self._has_failed = True
            _tell_not_judged(error, left)

    async def _put_off(self, early: Sequence[Delivery]) -> None:
        """Leave messages of unknown kinds to others, for now."""
        await self._leave_to_others(early, self._unknown_kind_delay_seconds)
        log.warning(
            "message.unknown_kind",
            kinds=sorted({delivery.message.kind for delivery in early}),
            remedy="another consumer must know the kind, or HAULAGE_KINDS lacks it here, or"
            " HAULAGE_CONSUMER_KINDS leaves it out",
        )

    async def _leave_to_others(self, deliveries: Sequence[Delivery], seconds: int) -> None:
        """Hide messages for so long, and for twice as long each time that one comes again."""
        await self._receipts.hide(
            [(each, left_seconds(seconds, each.receive_count)) for each in deliveries]
        )

    async def _let_go(self, deliveries: dict[int, Delivery], unwanted: Unwanted) -> None:
        """Delete what the database has nothing left to do for; hide what another consumer runs."""
        if not deliveries:
            return
        rows = await self._database.fetch(
            let_go_of_entries(list(deliveries), lock_seconds=self._lock_seconds)
        )
        busy = {row.id: row for row in rows}
        done: list[str] = []
        others: list[tuple[Delivery, int]] = []
        for entry_id, delivery in deliveries.items():
            row = busy.get(entry_id)
            if row is None:
                # Settled, or waiting in Postgres to be sent anew.
                done.append(delivery.handle)
            elif (entry_id, row.epoch) in self._held:
                # Ours, delivered again: the newest handle is the one that deletes. Another receiver
                # may have seen to a newer one already.
                held = self._held[entry_id, row.epoch]
                self._held[entry_id, row.epoch] = max(held, delivery, key=attrgetter("received_at"))
            else:
                # A lease may be over, or its repair fail, again and again.
                least = left_seconds(1, delivery.receive_count)
                others.append((delivery, max(math.ceil(row.lease_seconds) + 1, least)))
        messages = [delivery.message for delivery in deliveries.values()]
        self._tell_duplicates([it for it in messages if it.job_id not in unwanted.jobs], busy)
        await self._receipts.hide(others)
        await self._receipts.delete(done)

    def _tell_duplicates(self, messages: Sequence[Message], busy: Collection[int]) -> None:
        if not messages:
            return
        in_other_hands = sum(message.entry_id in busy for message in messages)
        self._instruments.metrics.duplicates(len(messages))
        log.info(
            "message.duplicate",
            settled=len(messages) - in_other_hands,
            in_other_hands=in_other_hands,
            correlation_ids=sorted({message.trace.correlation_id for message in messages}),
        )

    async def _park(self, foreign: Sequence[Received]) -> None:
        await self._database.fetch(
            park_messages(
                self._queue_url,
                message_ids=[each.message_id for each in foreign],
                reasons=[each.reason for each in foreign],
                bodies=[each.body for each in foreign],
                attributes=[json.dumps(each.attributes) for each in foreign],
            )
        )
        for each in foreign:
            log.error(
                "message.parked",
                message_id=each.message_id,
                reason=each.reason,
                remedy="read table parked_message; find who sends to this queue",
            )
        await self._receipts.delete([each.handle for each in foreign])

    async def extend(self, claims: Sequence[Claim], lease_seconds: float) -> None:
        """Hide the messages of held claims for another lease, within SQS's twelve hours."""
        seconds = math.ceil(lease_seconds)

        async def hide(claims: Sequence[Claim]) -> None:
            # Only now: those that were acknowledged meanwhile are no longer to be hidden.
            held = [self._held[_key(claim)] for claim in claims if _key(claim) in self._held]
            await self._receipts.hide([(delivery, seconds) for delivery in held])

        await self._receipts.in_calls(hide, claims)

    async def acknowledge(self, claims: Sequence[Claim]) -> None:
        """Delete the messages; one that resists comes back and finds nothing left to do."""
        held = [self._held.pop(_key(claim), None) for claim in claims]
        await self._receipts.delete([delivery.handle for delivery in held if delivery])

    def abandon(self, claim: Claim) -> None:
        """Forget the receipt, not the message: it comes again and finds the truth."""
        self._held.pop(_key(claim), None)

    async def ping(self) -> None:
        """Return when the queue answers."""
        with speaking_plainly("sqs"):
            await self._client.get_queue_attributes(
                QueueUrl=self._queue_url, AttributeNames=["QueueArn"]
            )


def _key(claim: Claim) -> tuple[int, int]:
    return claim.entry_id, claim.epoch


def _tell_not_judged(error: Exception, messages: int) -> None:
    if isinstance(error, HaulageError | TimeoutError):
        reason = str(error) or "no answer in time"
        log.warning("message.not_judged", messages=messages, error=reason)
    else:
        log.error("message.not_judged", messages=messages, exc_info=error)
