"""The consumer: receive and claim what fits, carry every claim through, drain when told to stop."""

from __future__ import annotations

import asyncio
from collections import ChainMap
from typing import TYPE_CHECKING, Any

import structlog

from consumer.intake import NO_ROOM
from infra.queue.protocol import Unwanted
from infra.retry import jittered, sleep_unless
from schema.errors import HaulageError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from consumer.acknowledger import Acknowledger
    from consumer.executor import Executor
    from consumer.intake import Intake, Room
    from consumer.lease import Leases
    from consumer.pace import Paces
    from consumer.regulator import Regulator
    from consumer.releaser import Releaser
    from consumer.settler import Settler
    from consumer.strays import Strays
    from consumer.work import Workshop
    from infra.queue.protocol import Claim, Queue

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_BACKOFF_BASE_SECONDS = 0.2
_BACKOFF_CAP_SECONDS = 5.0
# What is not deleted by then comes back, and finds that there is nothing left to do for it.
_LAST_SECONDS = 5.0


class Consumer:
    """Runs receivers over one queue until told to stop, then drains within ``drain_seconds``."""

    def __init__(
        self,
        queue: Queue,
        workshop: Workshop,
        intake: Intake,
        executor: Executor,
        leases: Leases,
        settler: Settler,
        releaser: Releaser,
        strays: Strays,
        acknowledger: Acknowledger,
        paces: Paces,
        regulator: Regulator,
        *,
        receivers: int,
        most_entries: int,
        drain_seconds: float,
        abandon_seconds: float,
        turn_seconds: float,
        turned: Callable[[], None] = lambda: None,
    ) -> None:
        self._queue = queue
        self._workshop = workshop
        self._intake = intake
        self._executor = executor
        self._leases = leases
        self._settler = settler
        self._releaser = releaser
        self._strays = strays
        self._acknowledger = acknowledger
        self._paces = paces
        self._regulator = regulator
        self._unwanted = Unwanted(intake.full, ChainMap(settler.shunned, releaser.shunned))
        # The waits for room, which end with the process.
        self._waits: set[asyncio.Timeout] = set()
        # Receivers, and claims that are carried.
        self._tasks: set[asyncio.Task[None]] = set()
        self._receivers = receivers
        self._most_entries = most_entries
        self._drain_seconds = drain_seconds
        self._abandon_seconds = abandon_seconds
        self._turn_seconds = turn_seconds
        self._turned = turned

    def load(self) -> tuple[int, int]:
        """Give how many inputs are in hand, and how many may run at once."""
        return self._intake.in_hand, self._executor.capacity

    async def run(self, stop: asyncio.Event) -> None:
        """Consume until ``stop``; return when all that was claimed is settled or given back."""
        # Until the first good poll, the loop is as old as its start.
        self._turned()
        async with asyncio.TaskGroup() as side:
            background = [
                side.create_task(self._leases.run(), name="keepalive"),
                side.create_task(self._settler.run(), name="settler"),
                side.create_task(self._releaser.run(), name="releaser"),
                side.create_task(self._strays.run(), name="strays"),
                side.create_task(self._paces.run(), name="paces"),
                side.create_task(self._regulator.run(), name="regulator"),
            ]
            deleting = side.create_task(self._acknowledger.run(), name="acknowledger")
            async with asyncio.TaskGroup() as work:
                for number in range(self._receivers):
                    self._begin(work, self._receive(work, stop), name=f"receiver {number}")
                await stop.wait()
                self._executor.fill()
                for wait in self._waits:
                    if not wait.expired():
                        wait.reschedule(0)
                log.info(
                    "consumer.draining",
                    waiting_for="open polls, and the inputs that run",
                    claims=self._leases.many,
                    drain_seconds=self._drain_seconds,
                )
                loop = asyncio.get_running_loop()
                timers = [
                    loop.call_later(self._drain_seconds, self._cut_short),
                    loop.call_later(self._abandon_seconds, self._abandon),
                ]
            for timer in timers:
                timer.cancel()
            self._acknowledger.close()
            last = [
                deleting,
                side.create_task(self._strays.last(), name="last strays"),
                side.create_task(self._paces.write_once(), name="last paces"),
            ]
            await asyncio.wait(last, timeout=_LAST_SECONDS)
            for task in (*last, *background):
                task.cancel()

    def _cut_short(self) -> None:
        """End the drain: what runs is interrupted, what waits for a commit is tried once more."""
        self._leases.interrupt_all()
        self._settler.give_up()

    def _abandon(self) -> None:
        """End what waits for a neighbour even now: a silent one would hold up each in its turn."""
        log.error(
            "consumer.abandoned",
            claims=self._leases.many,
            remedy="a neighbour is silent; each lease ends by itself, and costs an attempt",
        )
        for task in self._tasks:
            task.cancel()

    def _begin(
        self, work: asyncio.TaskGroup, doing: Coroutine[Any, Any, None], *, name: str
    ) -> None:
        task = work.create_task(doing, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _receive(self, work: asyncio.TaskGroup, stop: asyncio.Event) -> None:
        """Claim whenever there is room; an error never ends it, only slows it down."""
        failures = 0
        pause = sleep_unless(stop)
        while not stop.is_set():
            room = await self._room(stop)
            if room is None:
                return
            try:
                await self._claim(room, work, stop)
            except Exception as error:  # noqa: BLE001 - one bad row must not end all consumers
                failures += 1
                delay = jittered(
                    failures, base_seconds=_BACKOFF_BASE_SECONDS, cap_seconds=_BACKOFF_CAP_SECONDS
                )
                if failures == 1:
                    _tell(error, retry_in_seconds=round(delay, 2))
                await pause(delay)
                continue
            if failures:
                log.info("receive.recovered", after_failures=failures)
            failures = 0
            self._turned()

    async def _claim(self, room: Room, work: asyncio.TaskGroup, stop: asyncio.Event) -> None:
        """Claim what fits into the room that is kept, and begin it as it comes."""
        try:
            claims = await self._queue.claim(room.entries, stop, self._unwanted)
            while claims:
                self._intake.took(NO_ROOM, [(claim.kind, len(claim.inputs)) for claim in claims])
                for claim in claims:
                    self._begin(work, self._carry(claim), name=f"entry {claim.entry_id}")
                claims = await self._queue.claim_rest(stop, self._unwanted)
        finally:
            self._intake.took(room, [])

    async def _carry(self, claim: Claim) -> None:
        """Carry a claim through; what nobody foresaw costs it its lease, and the others nothing."""
        try:
            await self._workshop.carry(claim)
        except Exception:
            log.exception(
                "entry.failed",
                entry=claim.entry_id,
                job=claim.job_key,
                correlation_id=claim.trace.correlation_id,
                remedy="its lease ends by itself, and an attempt is charged; a defect",
            )
            self._acknowledger.drop(claim)

    async def _room(self, stop: asyncio.Event) -> Room | None:
        """Wait until another claim fits, or for nothing once told to stop.

        A consumer that is full is busy, not stuck.
        """
        while not stop.is_set():
            wait = asyncio.timeout(self._turn_seconds)
            try:
                async with wait:
                    self._waits.add(wait)
                    await self._settler.room()
                    await self._releaser.room()
                    room = await self._intake.room(self._most_entries)
            except TimeoutError:
                self._turned()
            else:
                if not stop.is_set():
                    return room
                self._intake.took(room, [])
            finally:
                self._waits.discard(wait)
        return None


def _tell(error: Exception, *, retry_in_seconds: float) -> None:
    if isinstance(error, HaulageError):
        log.warning("receive.away", error=str(error), retry_in_seconds=retry_in_seconds)
    else:
        log.error("receive.failed", retry_in_seconds=retry_in_seconds, exc_info=error)
