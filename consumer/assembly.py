"""Puts a consumer together from its neighbours, whichever they are."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from consumer.acknowledger import Acknowledger
from consumer.executor import Executor
from consumer.intake import Intake
from consumer.lease import Leases
from consumer.loop import Consumer
from consumer.pace import Paces
from consumer.regulator import Regulator
from consumer.releaser import Releaser
from consumer.settler import Settler
from consumer.strays import Strays
from consumer.telling import show_load
from consumer.work import Workshop
from infra.patience import commit_seconds, lock_seconds
from infra.telemetry.instruments import SILENT

# For an answer of a neighbour that is there.
_PATIENCE_SECONDS = 5.0

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    from consumer.executor import Runner
    from infra.database import Database
    from infra.http import Health
    from infra.queue.protocol import Queue
    from infra.settings import Settings
    from infra.telemetry.instruments import Instruments
    from schema.kinds import Kind


def assemble(
    settings: Settings,
    worker: str,
    database: Database,
    queue: Queue,
    runners: Mapping[str, Runner],
    kinds: Mapping[str, Kind],
    stop: asyncio.Event,
    *,
    health: Health,
    control: asyncio.Event | None = None,
    instruments: Instruments = SILENT,
    tell: Callable[[], None] = lambda: None,
    wake: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.monotonic,
) -> Consumer:
    """Give a consumer that is ready to run; it opens nothing by itself.

    ``control`` is set when some job was paused or ended by request; else the next extension of
    the leases finds out. ``tell`` is called when an outcome ended its job before the others had
    theirs, ``wake`` when something was left for others to do, now or later. ``clock`` is the
    loop's own, by which this process knows its leases' ends.
    """
    intake = Intake(
        slots=settings.concurrency,
        prefetch_inputs=settings.prefetch_inputs,
        prefetch_seconds=settings.prefetch_seconds,
        kinds=runners,
    )
    leases = Leases(
        database,
        queue,
        lease_seconds=settings.lease_seconds,
        control=control,
        instruments=instruments,
        clock=clock,
    )
    patience = lock_seconds(lease_seconds=settings.lease_seconds)
    commits = commit_seconds(lease_seconds=settings.lease_seconds)
    settler = Settler(
        database,
        worker=worker,
        backoffs={name: kind.backoff for name, kind in kinds.items()},
        most=settings.settle_batch,
        lock_seconds=patience,
        commit_seconds=commits,
        statement_seconds=settings.statement_timeout_seconds,
        tell=tell,
        wake=wake,
        events=settings.events_queue_url is not None,
        instruments=instruments,
    )
    releaser = Releaser(
        database,
        most=settings.settle_batch,
        lock_seconds=patience,
        commit_seconds=commits,
        given_up=settler.given_up,
        wake=wake,
    )
    strays = Strays(
        database,
        queue.claiming,
        leases,
        releaser,
        worker=worker,
        lease_seconds=settings.lease_seconds,
    )
    acknowledger = Acknowledger(queue, calls_at_once=settings.receipt_calls)
    paces = Paces(database)
    executor = Executor(
        intake,
        slots=settings.concurrency,
        stop=stop,
        grace_seconds=settings.cancel_grace_seconds,
        # What runs in child processes is timed there, where it can be killed.
        limits_seconds={
            name: kind.time_limit_seconds
            for name, kind in kinds.items()
            if kind.isolation == "none"
        },
        instruments=instruments,
        clock=clock,
    )
    regulator = Regulator(
        intake,
        executor,
        paces,
        bounds={name: kinds[name].concurrency for name in runners},
        slots=settings.concurrency,
        minimum=settings.concurrency_minimum,
        window_seconds=settings.concurrency_window_seconds,
        prefetch_seconds=settings.prefetch_seconds,
        clock=clock,
    )
    database.told_wait = regulator.note_wait
    health.complaints.append(lambda: _complaint(executor))
    show_load(instruments.metrics, intake, executor, regulator)
    workshop = Workshop(
        runners,
        leases,
        settler,
        releaser,
        acknowledger,
        executor,
        paces,
        regulator,
        instruments=instruments,
    )
    return Consumer(
        queue,
        workshop,
        intake,
        executor,
        leases,
        settler,
        releaser,
        strays,
        acknowledger,
        paces,
        regulator,
        receivers=settings.receivers,
        most_entries=settings.most_entries,
        drain_seconds=settings.drain_seconds,
        abandon_seconds=_abandon_seconds(settings),
        turn_seconds=settings.liveness_timeout_seconds / 3,
        turned=lambda: health.turned("receive"),
    )


def _abandon_seconds(settings: Settings) -> float:
    """Say when nothing but a silent neighbour can keep a drain from its end.

    By then the open poll is over, and what was told to end has, or was left alone.
    """
    told_to_end = settings.drain_seconds + settings.cancel_grace_seconds
    return max(told_to_end, settings.receive_wait_seconds) + _PATIENCE_SECONDS


def _complaint(executor: Executor) -> str | None:
    if executor.capacity > 0:
        return None
    return f"all {executor.slots} slots are held by processors that ignored their cancellation"
