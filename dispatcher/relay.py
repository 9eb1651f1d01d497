"""Relays ready outbox entries to SQS: lock, send, then write down what was really taken.

The queue is kept shallow: of each kind only a window of entries is sent and not yet claimed. What
waits stays in Postgres, where owners take turns and where a pause, a cancel or a priority counts
at once.

A crash between sending and writing down sends the entry again after its lock lapsed; consumers
make the duplicate a no-op. Only entries that SQS can never take are parked; for everything
else the relay backs off and tries again, however long the queue is away.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import structlog

from infra.queue.sending import Outgoing, SendReport, Unsent
from infra.retry import jittered, sleep_unless
from infra.telemetry import names
from infra.telemetry.instruments import SILENT
from infra.telemetry.logs import traced
from schema.errors import HaulageError, Unavailable
from schema.lifecycle import EntryType
from schema.message import Message, Trace
from schema.statements import relay as statements
from schema.statements.claim import next_ready
from schema.statements.turns import FIRST_TURN, Turn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sqlalchemy import Row

    from infra.database import Database
    from infra.queue.sending import SqsSender
    from infra.settings import Settings
    from infra.telemetry.instruments import Instruments
    from infra.wakeup import Listener

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_SPIN_FLOOR_SECONDS = 0.01
# How soon a full window is looked at again: consumers do not say what they claim.
_WINDOW_PAUSE_SECONDS = 0.05


@dataclass(slots=True)
class RelayReport:
    """One round: how many entries were locked, sent, put off and parked.

    ``full``: entries are ready for which a window has no room. ``fault`` is set when no call was
    answered: the relay backs off as a whole.
    """

    locked: int = 0
    sent: int = 0
    put_off: int = 0
    parked: int = 0
    full: bool = False
    fault: str | None = None
    entry_ids: list[int] = field(default_factory=list)


class Relay:
    """Sends what is due, of the entry types it has a sender for."""

    def __init__(
        self,
        database: Database,
        senders: Mapping[EntryType, SqsSender],
        listener: Listener,
        settings: Settings,
        *,
        worker: str,
        turned: Callable[[], None] = lambda: None,
        instruments: Instruments = SILENT,
    ) -> None:
        self._instruments = instruments
        self._database = database
        self._senders = senders
        self._listener = listener
        self._settings = settings
        self._worker = worker
        self._turned = turned
        self._rounds = itertools.count(1)
        self._turns: dict[str, Turn] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Relay until ``stop``; sleep exactly until the next entry is due or a wake-up comes."""
        failures = 0
        back_off = sleep_unless(stop)
        while not stop.is_set():
            fault: Exception | None = None
            pause = 0.0
            try:
                report = await self.relay_once()
                if report.fault is not None:
                    fault = Unavailable(report.fault)
                if not report.locked:
                    pause = await self._pause(report)
            except Exception as error:  # noqa: BLE001 - one bad row must not end the relay of all
                fault = error
            if fault is None:
                if failures:
                    log.info("relay.recovered", after_failures=failures)
                failures = 0
                self._turned()
            else:
                failures += 1
                pause = self._backoff(failures)
                if failures == 1:
                    _tell(fault, retry_in_seconds=round(pause, 2))
                # A wake-up says that there is more to send, not that it can be sent.
                await back_off(pause)
                continue
            await self._listener.wait(pause, stop)

    async def _pause(self, report: RelayReport) -> float:
        """Say how long there is nothing to do, after a round that found nothing."""
        due = [self._settings.poll_floor_seconds]
        if EntryType.EVENT in self._senders:
            rows = await self._database.fetch(statements.next_event())
            due += [float(row.seconds) for row in rows]
        if report.full:
            due.append(_WINDOW_PAUSE_SECONDS)
        elif EntryType.INPUTS in self._senders:
            rows = await self._database.fetch(next_ready())
            due += [float(row.seconds) for row in rows]
        return max(min(due), _SPIN_FLOOR_SECONDS)

    def _backoff(self, failures: int) -> float:
        return max(
            0.05,
            jittered(
                failures,
                base_seconds=self._settings.relay_backoff_base_seconds,
                cap_seconds=self._settings.relay_backoff_cap_seconds,
            ),
        )

    async def relay_once(self) -> RelayReport:
        """Lock, send and write down one batch of each kind that is ready, and one of events."""
        token = f"{self._worker}#{next(self._rounds)}"
        report = RelayReport()
        rows = [*await self._lock_events(token), *await self._lock_ready(token, report)]
        report.locked = len(rows)
        if not rows:
            return report
        sent: list[int] = []
        unsent: list[Unsent] = []
        for part in await self._send_all(rows):
            sent += part.sent
            unsent += part.unsent
            report.fault = report.fault or part.fault
        if sent:
            # The queue answers: what failed waits for its own backoff, and holds up no other.
            report.fault = None
        report.sent, report.entry_ids = len(sent), sent
        await self._write_down(token, rows, sent, unsent, report)
        self._instruments.metrics.relayed(
            sent=report.sent,
            put_off=report.put_off,
            parked=report.parked,
            is_away=report.fault is not None,
        )
        return report

    async def _lock_events(self, token: str) -> Sequence[Row[Any]]:
        if EntryType.EVENT not in self._senders:
            return ()
        lock_seconds, most = self._settings.relay_lock_seconds, self._settings.relay_batch
        return await self._database.fetch(
            statements.lock_due_events(token, lock_seconds, most=most)
        )

    async def _lock_ready(self, token: str, report: RelayReport) -> Sequence[Row[Any]]:
        """Lock what has its turn and fits the window of its kind.

        A window for each kind: one that nobody consumes now must not hold up the others.
        """
        if EntryType.INPUTS not in self._senders:
            return ()
        await self._database.fetch(statements.promote_due())
        found: list[Row[Any]] = []
        window = self._settings.relay_window
        for row in await self._database.fetch(statements.find_room(window=window)):
            if row.room <= 0:
                report.full = True
                continue
            turn = self._turns.get(row.kind, FIRST_TURN)
            rows = await self._database.fetch(
                statements.lock_ready(
                    token,
                    self._settings.relay_lock_seconds,
                    kind=row.kind,
                    most=min(row.room, self._settings.relay_batch),
                    turn=turn,
                )
            )
            self._turns[row.kind] = turn.after(rows)
            found += rows
        return found

    async def _send_all(self, rows: Sequence[Row[Any]]) -> list[SendReport]:
        slots = asyncio.Semaphore(self._settings.relay_concurrency)

        async def send(sender: SqsSender, batch: Sequence[Outgoing]) -> SendReport:
            async with slots:
                try:
                    with self._instruments.tracing.together(
                        names.RELAY,
                        (Trace(**message.attributes) for message in batch),
                        attributes={names.MESSAGING_BATCH_COUNT: len(batch)},
                    ):
                        return await sender.send(batch)
                except HaulageError as error:
                    reason = str(error)
                    return SendReport(
                        [],
                        [Unsent(message.entry_id, reason, fatal=False) for message in batch],
                        fault=reason,
                    )

        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(send(sender, batch), name="relay send")
                for entry_type, sender in self._senders.items()
                for batch in sender.pack(_outgoing(row) for row in rows if row.type == entry_type)
            ]
        return [task.result() for task in tasks]

    async def _write_down(
        self,
        token: str,
        rows: Sequence[Row[Any]],
        sent: Sequence[int],
        unsent: Sequence[Unsent],
        report: RelayReport,
    ) -> None:
        if sent:
            await self._database.fetch(statements.mark_sent(token, sent))
            if EntryType.EVENT in self._senders:
                await self._database.fetch(statements.delete_published_events(token, sent))
        by_id = {row.id: row for row in rows}
        # One line for each job of the round: every job is found in the logs of each process.
        one_of_job = {row.job_key: row for row in rows}
        for job, entries in Counter(by_id[id_].job_key for id_ in sent).items():
            with traced(_trace(one_of_job[job]), job=job):
                log.info("relay.sent", entries=entries)
        fatal = [failure for failure in unsent if failure.fatal]
        if fatal:
            await self._database.fetch(
                statements.park_entries(
                    token,
                    [failure.entry_id for failure in fatal],
                    [failure.reason for failure in fatal],
                )
            )
            report.parked = len(fatal)
            for failure in fatal:
                row = by_id[failure.entry_id]
                with traced(_trace(row), job=row.job_key, entry=row.id):
                    log.error(
                        "relay.parked",
                        reason=failure.reason,
                        remedy="see outbox.parked_reason; set state to PENDING once it can be sent",
                    )
        waiting = [failure for failure in unsent if not failure.fatal]
        if waiting:
            delays = [self._backoff(by_id[failure.entry_id].relay_attempts) for failure in waiting]
            await self._database.fetch(
                statements.back_off(token, [failure.entry_id for failure in waiting], delays)
            )
            report.put_off = len(waiting)


def _trace(row: Row[Any]) -> Trace:
    return Trace(row.correlation_id, row.traceparent, row.tracestate, row.baggage)


def _outgoing(row: Row[Any]) -> Outgoing:
    trace = _trace(row)
    body = (
        Message(row.id, row.job_id, row.kind, trace).body()
        if row.type == EntryType.INPUTS
        # ASCII, as every message is: SQS refuses some characters that JSON allows.
        else json.dumps(json.loads(row.payload), separators=(",", ":"))
    )
    return Outgoing(row.id, body, trace.attributes(), str(row.owner_id))


def _tell(fault: Exception, *, retry_in_seconds: float) -> None:
    if isinstance(fault, Unavailable):
        log.warning("relay.away", error=str(fault), retry_in_seconds=retry_in_seconds)
    else:
        log.error("relay.failed", retry_in_seconds=retry_in_seconds, exc_info=fault)
