"""The stub as something to run: inside a test's event loop, or as a process of its own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

from tests.stubs.sqs.actions import Actions
from tests.stubs.sqs.faults import Faults
from tests.stubs.sqs.http import Connection
from tests.stubs.sqs.queues import Queues

if TYPE_CHECKING:
    from collections import Counter

    from tests.stubs.sqs.queue import Queue

REGION = "us-east-1"


class SqsStub:
    """An SQS on loopback for as long as its context lasts."""

    def __init__(self, *, port: int = 0, host: str = "127.0.0.1") -> None:
        self.faults = Faults()
        self._host = host
        self._port = port
        self._connections: set[Connection] = set()
        self._server: asyncio.Server | None = None
        self._queues: Queues | None = None
        self._actions: Actions | None = None

    @property
    def endpoint_url(self) -> str:
        """Give what clients take as their endpoint."""
        return f"http://{self._host}:{self._port}"

    @property
    def calls(self) -> Counter[str]:
        """Give how often each action was called."""
        assert self._actions is not None, "the stub runs"
        return self._actions.calls

    def create_queue(self, name: str) -> str:
        """Create a queue with the default attributes; give its URL."""
        assert self._queues is not None, "the stub runs"
        return str(self._queues.create({"QueueName": name})["QueueUrl"])

    def queue(self, url: str) -> Queue:
        """Give a queue's inside, such as its ``in_flight_limit``."""
        assert self._queues is not None, "the stub runs"
        return self._queues.of({"QueueUrl": url})

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()

        def connect() -> Connection:
            assert self._actions is not None, "made before the first connection"
            return Connection(self._actions, self._connections)

        self._server = await loop.create_server(connect, self._host, self._port)
        self._port = self._server.sockets[0].getsockname()[1]
        self._queues = Queues(loop, base_url=self.endpoint_url, region=REGION)
        self._actions = Actions(self._queues, self.faults)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None, "entered before"
        assert self._queues is not None, "entered before"
        self._server.close()
        self._queues.close()
        for connection in list(self._connections):
            connection.close()
        await self._server.wait_closed()
