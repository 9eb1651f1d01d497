"""The two ways of delivery behind one face, so that one suite holds both to the same promises."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from types_aiobotocore_sqs import SQSClient

from consumer.assembly import assemble
from consumer.executor import Runner
from dispatcher.expirer import Expirer
from dispatcher.finalizer import Finalizer
from dispatcher.maintenance import MaintenanceService, run_services
from dispatcher.promoter import Promoter
from dispatcher.reaper import Reaper
from dispatcher.redriver import Redriver
from dispatcher.relay import Relay
from dispatcher.resender import Resender
from dispatcher.sweeper import Sweeper
from infra.clients import Clients
from infra.database import Database
from infra.http import Health
from infra.queue.outbox import OutboxQueue
from infra.queue.protocol import Queue
from infra.queue.sending import SqsSender
from infra.queue.sqs import SqsQueue
from infra.settings import Settings
from infra.telemetry.instruments import SILENT, Instruments
from infra.wakeup import Listener
from localstack.init.resources import Access
from schema.kinds import Kind
from schema.lifecycle import EntryType
from tests.platform import KIND, KINDS

# Nobody speaks TLS here, and each client reads all authorities that there are.
CA_BUNDLE = str(Path(__file__).parent / "stubs" / "tls" / "certificate.pem")


@contextmanager
def aws_environment(aws: Access) -> Iterator[None]:
    """Give botocore what it reads from the environment, and take it away again."""
    given = {
        "AWS_ENDPOINT_URL": aws.endpoint_url,
        "AWS_DEFAULT_REGION": aws.region,
        "AWS_ACCESS_KEY_ID": aws.access_key_id,
        "AWS_SECRET_ACCESS_KEY": aws.secret_access_key,
        "AWS_CA_BUNDLE": CA_BUNDLE,
    }
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _silent() -> None:
    """Tell nobody."""


@dataclass
class Delivery:
    """One mode of delivery on one database."""

    mode: str
    settings: Settings
    database: Database
    listener: Listener
    sqs: SQSClient | None = None
    receiving: SQSClient | None = None
    kinds: Mapping[str, Kind] = field(default_factory=lambda: KINDS)
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    instruments: Instruments = SILENT

    def queue(self, worker: str, *, kinds: tuple[str, ...] = ()) -> Queue:
        """Give a consumer's end of the queue, by default of all kinds that are known here."""
        kinds = kinds or tuple(self.kinds)
        if self.sqs is None or self.receiving is None:
            return OutboxQueue(
                self.database,
                self.listener,
                worker=worker,
                kinds=kinds,
                lease_seconds=self.settings.lease_seconds,
                poll_floor_seconds=self.settings.poll_floor_seconds,
                instruments=self.instruments,
            )
        assert self.settings.queue_url
        return SqsQueue(
            self.sqs,
            self.receiving,
            self.database,
            queue_url=self.settings.queue_url,
            worker=worker,
            kinds=kinds,
            lease_seconds=self.settings.lease_seconds,
            wait_seconds=self.settings.receive_wait_seconds,
            calls_at_once=self.settings.receipt_calls,
            unknown_kind_delay_seconds=self.settings.unknown_kind_delay_seconds,
            instruments=self.instruments,
        )

    def relay(
        self, worker: str = "relay", *, turned: Callable[[], None] = _silent, **changes: Any
    ) -> Relay:
        """Give a relay of inputs; without SQS there is none."""
        return self._relay(EntryType.INPUTS, self.settings.queue_url, worker, turned, changes)

    def event_relay(
        self,
        worker: str = "relay",
        *,
        queue_url: str,
        turned: Callable[[], None] = _silent,
        **changes: Any,
    ) -> Relay:
        """Give a relay of events to a queue."""
        return self._relay(EntryType.EVENT, queue_url, worker, turned, changes)

    def _relay(
        self,
        entry_type: EntryType,
        queue_url: str | None,
        worker: str,
        turned: Callable[[], None],
        changes: dict[str, Any],
    ) -> Relay:
        assert self.sqs is not None
        assert queue_url
        settings = self.settings.model_copy(update=changes)
        return Relay(
            self.database,
            entry_type,
            SqsSender(self.sqs, queue_url=queue_url, limit_bytes=settings.max_message_bytes),
            settings,
            worker=worker,
            woken=self.listener.wakes(),
            turned=turned,
            instruments=self.instruments,
        )

    def services(self) -> list[MaintenanceService]:
        """Give the maintenance services of a dispatcher."""
        return [
            Reaper(
                self.database,
                lease_seconds=self.settings.lease_seconds,
                backoffs={name: kind.backoff for name, kind in self.kinds.items()},
                most=100,
                wake=self.listener.wake,
                tell=self.listener.tell_controlled,
                events=self.settings.events_queue_url is not None,
                instruments=self.instruments,
            ),
            Promoter(self.database, wake=self.listener.wake),
            Resender(
                self.database,
                after_seconds=self.settings.resend_after_seconds,
                most=100,
                wake=self.listener.wake,
            ),
            Finalizer(self.database, most=100),
            Expirer(self.database, most=100, tell=self.listener.tell_controlled),
            Sweeper(
                self.database,
                most=100,
                wake=self.listener.wake,
                tell=self.listener.tell_controlled,
            ),
            Redriver(
                self.database,
                chunks={name: kind.chunk for name, kind in KINDS.items()},
                wake=self.listener.wake,
            ),
        ]

    async def deliver(self) -> None:
        """Relay whatever is due now."""
        if self.sqs is not None:
            while (await self.relay().relay_once()).locked:
                pass

    @asynccontextmanager
    async def consuming(
        self,
        runner: Runner | Mapping[str, Runner],
        *,
        worker: str = "worker",
        queue: Callable[[str], Queue] | None = None,
        tell: Callable[[], None] | None = None,
        **changes: Any,
    ) -> AsyncIterator[asyncio.Event]:
        """Run a consumer inside the block; leaving it drains. Gives its ``stop``."""
        stop = asyncio.Event()
        runners = runner if isinstance(runner, Mapping) else {KIND: runner}
        consumer = assemble(
            self.settings.model_copy(update=changes),
            worker,
            self.database,
            (queue or self.queue)(worker),
            runners,
            self.kinds,
            stop,
            health=Health(60),
            control=self.listener.controls(),
            instruments=self.instruments,
            tell=tell or self.listener.tell_controlled,
            wake=self.listener.wake,
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(consumer.run(stop), name=f"consumer {worker}")
            try:
                yield stop
            finally:
                stop.set()

    @asynccontextmanager
    async def dispatching(self, *, worker: str = "dispatcher") -> AsyncIterator[None]:
        """Run a dispatcher's relay and services inside the block."""
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            if self.sqs is not None:
                group.create_task(self.relay(worker).run(stop), name=f"relay {worker}")
            group.create_task(
                run_services(
                    self.services(),
                    interval_seconds=self.settings.maintenance_interval_seconds,
                    stop=stop,
                    turned=lambda _: None,
                    wakes={name: self.listener.controls() for name in ("sweeper", "redriver")},
                ),
                name="maintenance",
            )
            try:
                yield
            finally:
                stop.set()
                self.listener.wake()


@asynccontextmanager
async def open_delivery(
    mode: str, settings: Settings, database: Database, listener: Listener
) -> AsyncIterator[Delivery]:
    """Open delivery in a mode; over SQS with a queue of its own, deleted afterwards."""
    if mode == "outbox":
        yield Delivery(mode, settings, database, listener)
        return
    async with Clients(settings).sqs() as sqs:
        url = (await sqs.create_queue(QueueName=f"test-{uuid4().hex}"))["QueueUrl"]
        sqs_settings = settings.model_copy(
            update={"consumer_mode": "sqs-consumer", "queue_url": url}
        )
        async with connect_delivery(sqs_settings, database, listener) as delivery:
            yield delivery
        await sqs.delete_queue(QueueUrl=url)


@asynccontextmanager
async def connect_delivery(
    settings: Settings,
    database: Database,
    listener: Listener,
    *,
    kinds: Mapping[str, Kind] = KINDS,
) -> AsyncIterator[Delivery]:
    """Open delivery as the settings say; over SQS the queue is there already."""
    if settings.consumer_mode == "outbox":
        yield Delivery("outbox", settings, database, listener, kinds=kinds)
        return
    clients = Clients(settings)
    async with clients.sqs() as sqs, clients.sqs_receiving() as receiving:
        yield Delivery("sqs", settings, database, listener, sqs, receiving, kinds)
