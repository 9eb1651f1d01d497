"""Relays due outbox entries of one type to its queue: lock, send, write down what was taken.

Each type has a relay, and so a loop, a backoff and a wake-up of its own: a queue that is silent
costs no other its throughput. What differs between the types is in ``sources``.

A crash between sending and writing down sends the entry again after its lock lapsed; consumers
make the duplicate a no-op. Only entries that SQS can never take are parked, and only while it takes
others where its reason may be about the queue; for everything else the relay backs off and tries
again, however long the queue is away.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import structlog

from dispatcher.sources import SOURCES, Source
from infra.pauses import Pauses
from infra.queue.sending import Outgoing, SendReport, Unsent
from infra.retry import jittered, sleep_unless, until_database
from infra.telemetry import names
from infra.telemetry.instruments import SILENT
from infra.telemetry.logs import traced
from schema.errors import Unavailable
from schema.message import Trace
from schema.statements import relay as statements

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy import Row

    from infra.database import Database
    from infra.queue.sending import SqsSender
    from infra.settings import Settings
    from infra.telemetry.instruments import Instruments
    from schema.lifecycle import EntryType

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(slots=True)
class RelayReport:
    """One round: how many entries were locked, sent, put off and parked.

    ``full``: entries are ready for which a window has no room. ``fault`` is set when nothing was
    taken and the queue is at fault: the relay backs off as a whole. ``is_of_one``: unless it is the
    one entry that was tried.
    """

    locked: int = 0
    sent: int = 0
    put_off: int = 0
    parked: int = 0
    full: bool = False
    fault: str | None = None
    is_of_one: bool = False
    entry_ids: list[int] = field(default_factory=list)


class Relay:
    """Sends what is due of one entry type."""

    def __init__(
        self,
        database: Database,
        entry_type: EntryType,
        sender: SqsSender,
        settings: Settings,
        *,
        worker: str,
        woken: asyncio.Event,
        turned: Callable[[], None] = lambda: None,
        instruments: Instruments = SILENT,
    ) -> None:
        self._instruments = instruments
        # Events go by a queue of their own.
        self._tracing = instruments.tracing.to_sqs(sender.queue_url)
        self._database = database
        self._queue = entry_type.value
        self._source: Source = SOURCES[entry_type](database, settings)
        self.sender = sender
        self._settings = settings
        self._pauses = Pauses(most_seconds=settings.poll_floor_seconds)
        self._worker = worker
        self._woken = woken
        self._turned = turned
        self._rounds = itertools.count(1)

    async def run(self, stop: asyncio.Event) -> None:
        """Relay until ``stop``; sleep until the next entry is due or ``woken`` is set.

        What is due and in other hands is looked for ever more rarely, down to the poll floor.
        """
        failures = 0
        rest, back_off = sleep_unless(stop, self._woken), sleep_unless(stop)
        while not stop.is_set():
            self._woken.clear()
            fault: Exception | None = None
            pause, patience, is_of_one = 0.0, self._backoff, False
            try:
                report = await self.relay_once()
                if report.fault is not None:
                    fault, is_of_one = Unavailable(report.fault), report.is_of_one
                if report.locked:
                    self._pauses.took()
                else:
                    pause = self._pauses.seconds(await self._source.dues())
            except Exception as error:  # noqa: BLE001 - one bad row must not end the relay of all
                # What SQS does not take is in the report.
                fault, patience = error, until_database
            if fault is None:
                if failures:
                    log.info("relay.recovered", queue=self._queue, after_failures=failures)
                failures = 0
                self._turned()
                if pause:
                    await rest(pause)
            else:
                failures += 1
                pause = patience(failures)
                if is_of_one:
                    # It has a backoff of its own, and whatever else comes shows who is at fault.
                    pause = min(pause, self._settings.poll_floor_seconds)
                if failures == 1:
                    self._tell(fault, retry_in_seconds=round(pause, 2))
                # A wake-up says that there is more to send, not that it can be sent.
                await (rest if is_of_one else back_off)(pause)

    def _backoff(self, failures: int) -> float:
        return max(
            0.05,
            jittered(
                failures,
                base_seconds=self._settings.relay_backoff_base_seconds,
                cap_seconds=self._settings.relay_backoff_cap_seconds,
            ),
        )

    def _tell(self, fault: Exception, *, retry_in_seconds: float) -> None:
        if isinstance(fault, Unavailable):
            log.warning(
                "relay.away",
                queue=self._queue,
                error=str(fault),
                retry_in_seconds=retry_in_seconds,
            )
        else:
            log.error(
                "relay.failed",
                queue=self._queue,
                retry_in_seconds=retry_in_seconds,
                exc_info=fault,
            )

    async def relay_once(self) -> RelayReport:
        """Lock, send and write down one batch of what is due: of inputs, one of each kind."""
        token = f"{self._worker}#{self._queue}#{next(self._rounds)}"
        rows = await self._source.lock(token)
        report = RelayReport(locked=len(rows), full=self._source.is_full)
        if not rows:
            return report
        unsent: list[Unsent] = []
        for part in await self._send_all(rows):
            report.entry_ids += part.sent
            unsent += part.unsent
            report.fault = report.fault or part.fault
            report.is_of_one = part.is_of_one and len(rows) == 1
        report.sent = len(report.entry_ids)
        if report.sent:
            # The queue answers: what failed waits for its own backoff, and holds up no other.
            report.fault = None
        await self._write_down(token, rows, unsent, report)
        self._instruments.metrics.relayed(
            self._queue,
            sent=report.sent,
            put_off=report.put_off,
            parked=report.parked,
            is_away=report.fault is not None,
        )
        return report

    async def _send_all(self, rows: Sequence[Row[Any]]) -> list[SendReport]:
        slots = asyncio.Semaphore(self._settings.relay_concurrency)

        async def send(batch: Sequence[Outgoing]) -> SendReport:
            async with slots:
                try:
                    with self._tracing.together(
                        names.RELAY,
                        (Trace(**message.attributes) for message in batch),
                        attributes={names.MESSAGING_BATCH_COUNT: len(batch)},
                    ):
                        return await self.sender.send(batch)
                except Unavailable as error:
                    reason = str(error)
                    return SendReport(
                        [],
                        [Unsent(message.entry_id, reason, type(error)) for message in batch],
                        fault=reason,
                    )

        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(send(batch), name="relay send")
                for batch in self.sender.pack(map(self._outgoing, rows))
            ]
        return [task.result() for task in tasks]

    def _outgoing(self, row: Row[Any]) -> Outgoing:
        return Outgoing(row.id, self._source.body(row), _trace(row).attributes(), str(row.owner_id))

    async def _write_down(
        self,
        token: str,
        rows: Sequence[Row[Any]],
        unsent: Sequence[Unsent],
        report: RelayReport,
    ) -> None:
        sent = report.entry_ids
        by_id = {row.id: row for row in rows}
        if sent:
            await self._source.write_sent(token, [by_id[id_] for id_ in sent])
        # One line for each job of the round: every job is found in the logs of each process.
        one_of_job = {row.job_key: row for row in rows}
        for job, entries in Counter(by_id[id_].job_key for id_ in sent).items():
            with traced(_trace(one_of_job[job]), job=job):
                log.info("relay.sent", queue=self._queue, entries=entries)
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
                        queue=self._queue,
                        reason=failure.reason,
                        remedy="once it can be sent, POST /parked/entries/{id}/reprocess",
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
