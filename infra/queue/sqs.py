"""Delivery through SQS: long-poll, claim in Postgres, keep hidden while work runs, delete last."""

from __future__ import annotations

import asyncio
import json
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog

from infra.clients import speaking_plainly
from infra.queue.protocol import Claim
from infra.queue.received import Received, received
from infra.retry import jittered, sleep_unless
from infra.telemetry import names
from infra.telemetry.instruments import SILENT
from schema.errors import HaulageError
from schema.statements.claim import claim_by_id, let_go_of_entries
from schema.statements.repair import park_messages

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from collections.abc import Set as AbstractSet

    from types_aiobotocore_sqs import SQSClient

    from infra.database import Database
    from infra.telemetry.instruments import Instruments
    from schema.message import Message

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

BATCH_LIMIT = 10
_HIDDEN_LIMIT_SECONDS = 43_200
_DELETE_ROUNDS = 3
_PACE_CAP_SECONDS = 2.0
# Others may take them; those that nobody wants now must not go round and round.
_UNWANTED_SECONDS = 5


@dataclass(frozen=True, slots=True)
class Delivery:
    """One receipt of one message: the handle, and when it came (monotonic seconds)."""

    handle: str
    received_at: float
    message: Message


class SqsQueue:
    """Turns messages into claims; remembers the newest receipt of each claim that is held.

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
        unknown_kind_delay_seconds: int,
        instruments: Instruments = SILENT,
    ) -> None:
        self._instruments = instruments
        self._client = client
        self._receiving = receiving
        self._database = database
        self._queue_url = queue_url
        self._worker = worker
        self._kinds = frozenset(kinds)
        self._lease_seconds = lease_seconds
        self._wait_seconds = wait_seconds
        self._unknown_kind_delay_seconds = unknown_kind_delay_seconds
        self._held: dict[tuple[int, int], Delivery] = {}
        self._empty_at_once = 0
        self._has_failed = False

    async def claim(
        self, most: int, stop: asyncio.Event, full: AbstractSet[str] = frozenset()
    ) -> Sequence[Claim]:
        """Finish one long poll and claim what it brought, even when ``stop`` is set meanwhile."""
        if self._has_failed:
            # Messages that come while the database is away would be received in vain, and that
            # is counted; an empty poll would look as if the database were back.
            await self._database.ping()
            self._has_failed = False
        try:
            return await self._poll(most, stop, full)
        except Exception:
            self._has_failed = True
            raise

    async def _poll(
        self, most: int, stop: asyncio.Event, full: AbstractSet[str]
    ) -> Sequence[Claim]:
        began = time.monotonic()
        deliveries, received = await self._receive(min(most, BATCH_LIMIT), full)
        if received:
            self._empty_at_once = 0
        else:
            await self._pace(time.monotonic() - began, stop)
        if not deliveries:
            return ()
        # A poll that brings nothing is no event, and waiting for one is no work.
        with self._instruments.tracing.together(
            names.RECEIVE,
            (delivery.message.trace for delivery in deliveries.values()),
            attributes={names.MESSAGING_BATCH_COUNT: len(deliveries)},
        ) as span:
            claims = [*await self._claim(deliveries)]
            try:
                if deliveries:
                    # Who was starting the same job this moment has done so by now.
                    claims += await self._claim(deliveries)
                span.set_attribute(names.DUPLICATES, len(deliveries))
                # Nobody extends what was claimed until it is handed over.
                async with asyncio.timeout(self._lease_seconds / 3):
                    await self._let_go(deliveries)
            except (HaulageError, TimeoutError) as error:
                # The claims are made and must be carried; the other messages come back.
                reason = str(error) or "no answer in time"
                log.warning("message.not_judged", messages=len(deliveries), error=reason)
            except Exception:  # for the same reason, whatever it is
                log.exception("message.not_judged", messages=len(deliveries))
        return claims

    async def _claim(self, deliveries: dict[int, Delivery]) -> Sequence[Claim]:
        """Claim what the messages point at, and take these messages out of ``deliveries``."""
        try:
            rows = await self._database.fetch(
                claim_by_id(
                    self._worker,
                    self._lease_seconds,
                    list(deliveries),
                    job_ids=[delivery.message.job_id for delivery in deliveries.values()],
                    kinds=list(self._kinds),
                )
            )
        except HaulageError:
            # What was claimed all the same lapses; the messages come back at once.
            await self._hide(list(deliveries.values()), seconds=0)
            raise
        claims = [Claim.from_row(row) for row in rows]
        for claim in claims:
            self._held[_key(claim)] = deliveries.pop(claim.entry_id)
        return claims

    async def _pace(self, elapsed_seconds: float, stop: asyncio.Event) -> None:
        """Slow down after polls that were empty at once, as SQS is at its in-flight limit."""
        if elapsed_seconds >= self._wait_seconds / 2 > 0:
            self._empty_at_once = 0
            return
        self._empty_at_once += 1
        await sleep_unless(stop)(
            jittered(self._empty_at_once, base_seconds=0.05, cap_seconds=_PACE_CAP_SECONDS)
        )

    async def _receive(self, most: int, full: AbstractSet[str]) -> tuple[dict[int, Delivery], int]:
        """Give what can be claimed, and the number of messages that came, whatever they were."""
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
        deliveries: dict[int, Delivery] = {}
        foreign: list[Received] = []
        again: list[Delivery] = []
        early: list[Delivery] = []
        unwanted: list[Delivery] = []
        for each in messages:
            message = each.message
            if message is None:
                foreign.append(each)
                continue
            delivery = Delivery(each.handle, now, message)
            if message.kind not in self._kinds:
                early.append(delivery)
            elif message.kind in full:
                unwanted.append(delivery)
            elif message.entry_id in deliveries:
                again.append(delivery)
            else:
                deliveries[message.entry_id] = delivery
        if foreign:
            await self._park(foreign)
        if early:
            await self._hide(early, seconds=self._unknown_kind_delay_seconds)
            log.warning(
                "message.unknown_kind",
                kinds=sorted({delivery.message.kind for delivery in early}),
                remedy="another consumer must know the kind, or HAULAGE_KINDS lacks it here",
            )
        await self._hide(unwanted, seconds=_UNWANTED_SECONDS)
        await self._delete([delivery.handle for delivery in again])
        return deliveries, len(messages)

    async def _let_go(self, deliveries: dict[int, Delivery]) -> None:
        """Delete what the database has nothing left to do for; hide what another consumer runs."""
        if not deliveries:
            return
        rows = await self._database.fetch(let_go_of_entries(list(deliveries)))
        busy = {row.id: row for row in rows}
        done: list[str] = []
        for entry_id, delivery in deliveries.items():
            row = busy.get(entry_id)
            if row is None:
                # Settled, or waiting in Postgres to be sent anew.
                done.append(delivery.handle)
            elif (entry_id, row.epoch) in self._held:
                # Ours, delivered again: the newest handle is the one that deletes.
                self._held[entry_id, row.epoch] = delivery
            else:
                await self._hide([delivery], seconds=math.ceil(row.lease_seconds) + 1)
        self._instruments.metrics.duplicates(len(deliveries))
        log.info(
            "message.duplicate",
            settled=len(done),
            in_other_hands=len(busy),
            correlation_ids=sorted(
                {delivery.message.trace.correlation_id for delivery in deliveries.values()}
            ),
        )
        await self._delete(done)

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
        await self._delete([each.handle for each in foreign])

    async def extend(self, claims: Sequence[Claim], lease_seconds: float) -> None:
        """Hide the messages of held claims for another lease, within SQS's twelve hours."""
        held = [self._held[_key(claim)] for claim in claims if _key(claim) in self._held]
        await self._hide(held, seconds=math.ceil(lease_seconds))

    async def acknowledge(self, claims: Sequence[Claim]) -> None:
        """Delete the messages; one that resists comes back and finds nothing left to do."""
        held = [self._held.pop(_key(claim), None) for claim in claims]
        await self._delete([delivery.handle for delivery in held if delivery])

    def abandon(self, claim: Claim) -> None:
        """Forget the receipt, not the message: it comes again and finds the truth."""
        self._held.pop(_key(claim), None)

    async def ping(self) -> None:
        """Return when the queue answers."""
        with speaking_plainly("sqs"):
            await self._client.get_queue_attributes(
                QueueUrl=self._queue_url, AttributeNames=["QueueArn"]
            )

    async def _hide(self, deliveries: Sequence[Delivery], *, seconds: int) -> None:
        now = time.monotonic()
        for start in range(0, len(deliveries), BATCH_LIMIT):
            batch = deliveries[start : start + BATCH_LIMIT]
            entries: list[Any] = []
            for index, delivery in enumerate(batch):
                left = _HIDDEN_LIMIT_SECONDS - math.ceil(now - delivery.received_at) - 1
                timeout = max(0, min(seconds, left))
                entries.append(
                    {
                        "Id": str(index),
                        "ReceiptHandle": delivery.handle,
                        "VisibilityTimeout": timeout,
                    }
                )
            try:
                with speaking_plainly("sqs"):
                    answer = await self._client.change_message_visibility_batch(
                        QueueUrl=self._queue_url, Entries=entries
                    )
                    codes = [failed.get("Code") for failed in answer.get("Failed", ())]
            except HaulageError as error:
                log.warning("message.not_hidden", messages=len(batch), error=str(error))
                continue
            for code in codes:
                # The message is gone or its receipt lapsed: the lease in Postgres decides.
                log.info("message.not_hidden", code=code, messages=1)

    async def _delete(self, handles: Sequence[str]) -> None:
        for start in range(0, len(handles), BATCH_LIMIT):
            left = list(handles[start : start + BATCH_LIMIT])
            for round_number in range(1, _DELETE_ROUNDS + 1):
                left = await self._delete_batch(left, last=round_number == _DELETE_ROUNDS)
                if not left:
                    break

    async def _delete_batch(self, handles: Sequence[str], *, last: bool) -> list[str]:
        """Delete up to ten messages; return the handles worth another try."""
        try:
            with speaking_plainly("sqs"):
                answer = await self._client.delete_message_batch(
                    QueueUrl=self._queue_url,
                    Entries=[
                        {"Id": str(index), "ReceiptHandle": handle}
                        for index, handle in enumerate(handles)
                    ],
                )
                failed = [(handles[int(each["Id"])], each) for each in answer.get("Failed", ())]
        except HaulageError as error:
            if last:
                log.warning("message.not_deleted", messages=len(handles), error=str(error))
            return list(handles)
        again: list[str] = []
        for handle, why in failed:
            if not why.get("SenderFault") and not last:
                again.append(handle)
            else:
                log.warning("message.not_deleted", messages=1, code=why.get("Code"))
        return again


def _key(claim: Claim) -> tuple[int, int]:
    return claim.entry_id, claim.epoch
