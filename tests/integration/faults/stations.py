"""Real consumers and relays before an SQS that can be broken, and the counting of their calls."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import structlog
from structlog.testing import capture_logs

from infra.database import Database
from infra.queue.sqs import SqsQueue
from infra.wakeup import Listener
from localstack.init.resources import Access
from tests.deliveries import Delivery, aws_environment, open_delivery
from tests.platform import settings_for
from tests.stubs.sqs import SqsStub


@asynccontextmanager
async def sqs_station(
    stub: SqsStub, database: Database, database_url: str, *, port: int | None = None, **changes: Any
) -> AsyncIterator[Delivery]:
    """Delivery over the stub, reached through ``port`` when a proxy stands before it."""
    settings = settings_for(database_url, **changes)
    listener = Listener(settings, name="test")
    endpoint = stub.endpoint_url if port is None else f"http://127.0.0.1:{port}"
    with aws_environment(Access(endpoint)):
        async with open_delivery("sqs", settings, database, listener) as delivery:
            try:
                yield delivery
            finally:
                stub.faults.clear()


def sqs_queue(delivery: Delivery, worker: str = "worker") -> SqsQueue:
    queue = delivery.queue(worker)
    assert isinstance(queue, SqsQueue)
    return queue


def queue_url(delivery: Delivery) -> str:
    assert delivery.settings.queue_url
    return delivery.settings.queue_url


def waiting(stub: SqsStub, delivery: Delivery) -> int:
    """Give how many messages the queue holds, wherever they stand."""
    return sum(stub.queue(queue_url(delivery)).counts())


def show(stub: SqsStub, delivery: Delivery, number: int) -> None:
    """Let a message in flight, by its place among all that were sent, come again at once."""
    queue = stub.queue(queue_url(delivery))
    queue.change_visibility(queue.messages[number], 0)
    queue.serve()


@contextmanager
def log_lines() -> Iterator[list[Any]]:
    """Collect every line that is logged inside the block, as its dictionary."""
    with capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
        yield lines


def named(lines: list[Any], event: str) -> list[Any]:
    return [line for line in lines if line["event"] == event]


async def all_done(*waits: asyncio.Future[Any], timeout_seconds: float = 20) -> None:
    """Wait until all are done; fail when they are not in time, far above what they take."""
    done, pending = await asyncio.wait(waits, timeout=timeout_seconds)
    assert not pending, f"still waiting for {len(pending)} of {len(done) + len(pending)}"
