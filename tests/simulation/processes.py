"""The processes: each has its own memory and a gate, and is gone without a trace when it dies."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, cast

import httpx
from types_aiobotocore_sqs import SQSClient

from api.app import build_app
from consumer.assembly import assemble
from dispatcher.drain import Drain
from dispatcher.expirer import Expirer
from dispatcher.finalizer import Finalizer
from dispatcher.maintenance import MaintenanceService
from dispatcher.promoter import Promoter
from dispatcher.pruner import Pruner, Retention
from dispatcher.reaper import Reaper
from dispatcher.redriver import Redriver
from dispatcher.relay import Relay
from dispatcher.resender import Resender
from dispatcher.sweeper import Sweeper
from infra.database import Database
from infra.http import Health
from infra.queue.dead import DeadLetterQueue
from infra.queue.outbox import OutboxQueue
from infra.queue.protocol import Queue
from infra.queue.sending import SqsSender
from infra.queue.sqs import SqsQueue
from infra.settings import Settings
from infra.wakeup import Listener, Notifier
from schema.errors import HaulageError
from schema.lifecycle import EntryType
from tests.simulation.gate import Call, Fate, Gate, GatedDatabase
from tests.simulation.loop import SimulatedLoop
from tests.simulation.queues import FaultyQueue, SimulatedSqs
from tests.simulation.work import KINDS, Bench


@dataclass
class Surroundings:
    """What all processes share: neighbours, settings, and the clock."""

    loop: SimulatedLoop
    settings: Settings
    database: Database
    queues: Mapping[str, FaultyQueue]
    wake: Callable[[], None]
    tell: Callable[[], None]
    met: Callable[[str, Fate], None]


class Process:
    """A process that may die at any call."""

    def __init__(self, name: str, around: Surroundings) -> None:
        self.name = name
        self.gate = Gate()
        self.database = GatedDatabase.through(self.gate, around.database)
        self.sqs = SimulatedSqs(self.gate, around.queues)
        self._around = around
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def is_dead(self) -> bool:
        return self.gate.is_closed

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = self._around.loop.create_task(work, name=self.name)
        self._tasks.add(task)
        return task

    async def let_go(self, call: Call, fate: Fate) -> None:
        """Let one call meet its fate, and run on until nothing can."""
        self._around.met(f"{self.name.split()[0]}: {call.name}", fate)
        if fate is not Fate.DIES_BEFORE:
            call.go.set_result(fate)
            await call.done.wait()
        if fate in (Fate.DIES_BEFORE, Fate.DIES_AFTER):
            await self.die()
        await self.rest()
        self.check()

    async def rest(self) -> None:
        """Return when all that runs waits at the gate, or for a step to come."""
        await self._around.loop.idle()
        while self.gate.is_busy:
            await self.gate.passed()
            await self._around.loop.idle()

    async def go_on(self, calls: int, fate: Fate, *, until: str = "") -> int:
        """Let up to so many calls go, all well but the last; give how many there were.

        The first whose name contains ``until`` is the last, if that is given.
        """
        await self.rest()
        for number in range(1, calls + 1):
            call = self.gate.next_call()
            if call is None or self.is_dead:
                return number - 1
            is_last = number == calls or bool(until and until in call.name)
            await self.let_go(call, fate if is_last else Fate.WELL)
            if is_last:
                return number
        return 0

    async def die(self) -> None:
        """Lose the memory and everything that runs; what neighbours hold stays as it is."""
        self.gate.is_closed = True
        for task in self._tasks:
            task.cancel()
        await self.rest()
        assert all(task.done() for task in self._tasks), "something outlived its process"

    def check(self) -> None:
        """Fail if a task ended of what nobody expects."""
        for task in list(self._tasks):
            if task.done():
                self._tasks.remove(task)
                if not task.cancelled() and (error := task.exception()) is not None:
                    raise error


class Api(Process):
    """The application, called as clients call it."""

    def __init__(self, name: str, around: Surroundings) -> None:
        super().__init__(name, around)
        self._app = build_app(
            around.settings,
            database=self.database,
            notifier=Notifier(self.database, enabled=False),
            kinds=KINDS,
            health=Health(90),
        )

    async def ask(
        self, path: str, document: Any, *, headers: dict[str, str], calls: int, fate: Fate
    ) -> httpx.Response | None:
        """Give the answer to a POST, or nothing if the process dies before it has one."""
        task = self.start(self._post(path, document, headers))
        number = 0
        while not task.done():
            # A thread may be at work on the digest of a large request.
            self.gate.arrival.clear()
            arrival = self._around.loop.create_task(self.gate.arrival.wait())
            if self.gate.next_call() is None:
                await asyncio.wait({task, arrival}, return_when=asyncio.FIRST_COMPLETED)
            arrival.cancel()
            if (call := self.gate.next_call()) is not None:
                number += 1
                await self.let_go(call, fate if number == calls else Fate.WELL)
        return None if task.cancelled() else task.result()

    async def _post(self, path: str, document: Any, headers: dict[str, str]) -> httpx.Response:
        transport = httpx.ASGITransport(self._app)
        async with httpx.AsyncClient(transport=transport, base_url="http://haulage") as client:
            return await client.post(path, json=document, headers=headers)


class ConsumerProcess(Process):
    """A consumer as its process assembles it, whose processors wait to be told what to say."""

    def __init__(
        self, name: str, around: Surroundings, register: dict[int, tuple[int, int]]
    ) -> None:
        super().__init__(name, around)
        self.bench = Bench(register)
        self.listener = Listener(around.settings, name=name)
        self._stop = asyncio.Event()
        consumer = assemble(
            around.settings,
            name,
            self.database,
            self._queue(),
            self.bench.runners(),
            KINDS,
            self._stop,
            health=Health(90),
            control=self.listener.controls(),
            tell=around.tell,
            wake=around.wake,
            clock=around.loop.time,
        )
        self._running = self.start(consumer.run(self._stop))

    @property
    def is_gone(self) -> bool:
        return self._running.done()

    def stop(self) -> None:
        """SIGTERM: it drains, and the calls of that wait at the gate like all others."""
        self._stop.set()
        self.sqs.is_hasty = True

    def _queue(self) -> Queue:
        settings = self._around.settings
        if settings.consumer_mode == "outbox":
            return OutboxQueue(
                self.database,
                self.listener,
                worker=self.name,
                kinds=list(KINDS),
                lease_seconds=settings.lease_seconds,
                poll_floor_seconds=settings.poll_floor_seconds,
            )
        assert settings.queue_url
        client = cast(SQSClient, self.sqs)
        return SqsQueue(
            client,
            client,
            self.database,
            queue_url=settings.queue_url,
            worker=self.name,
            kinds=list(KINDS),
            lease_seconds=settings.lease_seconds,
            wait_seconds=settings.receive_wait_seconds,
            calls_at_once=settings.receipt_calls,
            unknown_kind_delay_seconds=settings.unknown_kind_delay_seconds,
        )


class Dispatcher(Process):
    """The relay and the maintenance services, each of which begins a round when a step says so."""

    def __init__(self, name: str, around: Surroundings) -> None:
        super().__init__(name, around)
        self._relays = self._make_relays()
        self._services = {service.name: service for service in self._make_services()}
        self._busy: dict[str, asyncio.Task[Any]] = {}

    @property
    def duties(self) -> list[str]:
        return [*self._relays, *self._services]

    def begin(self, duty: str) -> None:
        """Begin a round of a duty that it has, unless one is under way."""
        if duty in self.duties and (duty not in self._busy or self._busy[duty].done()):
            self._busy[duty] = self.start(self._round(duty))

    async def _round(self, duty: str) -> None:
        try:
            if duty in self._relays:
                await self._relays[duty].relay_once()
            else:
                await self._services[duty].once()
        except HaulageError:
            return  # the loops around them wait, and begin another round

    def _make_relays(self) -> dict[str, Relay]:
        settings = self._around.settings
        urls = {EntryType.EVENT: settings.events_queue_url}
        if settings.consumer_mode == "sqs-consumer":
            urls[EntryType.INPUTS] = settings.queue_url
        return {
            f"relay {entry_type}": Relay(
                self.database,
                entry_type,
                SqsSender(
                    cast(SQSClient, self.sqs), queue_url=url, limit_bytes=settings.max_message_bytes
                ),
                settings,
                worker=self.name,
                woken=asyncio.Event(),
            )
            for entry_type, url in urls.items()
            if url
        }

    def _make_services(self) -> list[MaintenanceService]:
        database, settings, around = self.database, self._around.settings, self._around
        most, wake, tell = settings.maintenance_batch, around.wake, around.tell
        assert settings.dead_letter_queue_url
        dead = DeadLetterQueue(cast(SQSClient, self.sqs), queue_url=settings.dead_letter_queue_url)
        return [
            Reaper(
                database,
                lease_seconds=settings.lease_seconds,
                backoffs={name: kind.backoff for name, kind in KINDS.items()},
                most=most,
                wake=wake,
                tell=tell,
                events=True,
            ),
            Promoter(database, wake=wake),
            Resender(database, after_seconds=settings.resend_after_seconds, most=most, wake=wake),
            Finalizer(database, most=most),
            Expirer(database, most=most, tell=tell),
            Sweeper(database, most=most, wake=wake, tell=tell),
            Redriver(database, chunks={n: k.chunk for n, k in KINDS.items()}, wake=wake, most=2),
            Drain(database, dead, wake=wake),
            Pruner(database, keep=Retention.from_settings(settings), most=most),
        ]
