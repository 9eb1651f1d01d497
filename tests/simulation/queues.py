"""Queues that lose, repeat, delay and mix up messages, and a process's client of them.

The queue itself is the SQS stand-in's, which a suite holds to SQS; here it is called, not served.
"""

# ruff: noqa: N803 - SQS spells its parameters so

import json
import random
from collections.abc import Mapping
from typing import Any, cast

from botocore.exceptions import EndpointConnectionError

from tests.simulation.gate import Fate, Gate
from tests.stubs.sqs import messages
from tests.stubs.sqs.queue import IN_FLIGHT, READY, Message, Queue

_ATTRIBUTES = {
    "MaximumMessageSize": "1048576",
    "DelaySeconds": "0",
    "VisibilityTimeout": "30",
    "ReceiveMessageWaitTimeSeconds": "0",
}


class NeighbourClock:
    """The time by which neighbours judge, whatever the hosts of our processes take it for."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def time(self) -> float:
        return self.seconds


class FaultyQueue:
    """A queue with a DLQ of its own, whose messages a step may take hold of."""

    def __init__(self, name: str, clock: NeighbourClock, *, most_receives: int) -> None:
        # The loop is asked for the time alone: nobody waits inside the queue.
        self.queue = Queue(name, cast(Any, clock))
        self.queue.attributes = dict(_ATTRIBUTES)
        self.dead: FaultyQueue | None = None
        # Entries of which a step lost a message, so that only the resender can help.
        self.lost: set[int] = set()
        # Entries of which a message was taken from here; it matters of a DLQ alone.
        self.deleted: set[int] = set()
        self._most_receives = most_receives

    @property
    def messages(self) -> list[Message]:
        return list(self.queue.messages.values())

    def has_ready(self) -> bool:
        return self.queue.counts()[0] > 0

    def entry_ids(self) -> set[int]:
        here = {entry_id(message) for message in self.messages}
        return here | self.dead.entry_ids() if self.dead else here

    def pick(self, which: int, *, only_ready: bool = False) -> Message | None:
        found = [each for each in self.messages if each.state == READY or not only_ready]
        return found[which % len(found)] if found else None

    def lose(self, message: Message) -> None:
        self.lost.add(entry_id(message))
        self.queue.delete(message)

    def purge(self) -> None:
        for message in self.messages:
            self.lose(message)

    def repeat(self, message: Message) -> None:
        """Deliver it once more, whatever has become of the first delivery."""
        self.queue.put(_copy(message), 0)

    def delay(self, message: Message, seconds: float) -> None:
        """Keep it back: what is in flight stays there longer than its consumer asked for."""
        if message.state == READY:
            self._move(message, self.queue, seconds)
        elif message.state == IN_FLIGHT:
            self.queue.change_visibility(message, seconds)

    def show(self, message: Message) -> None:
        """Let what is in flight be seen too early, as SQS may."""
        if message.state == IN_FLIGHT:
            self.queue.change_visibility(message, 0)

    def mix(self, seed: int) -> None:
        random.Random(seed).shuffle(self.queue.ready)

    def kill(self, message: Message) -> None:
        """Let what is ready have been received as often as it may."""
        message.receives = self._most_receives
        self.bury()

    def bury(self) -> None:
        """Move to the DLQ what was received too often and is ready again."""
        self.queue.counts()
        for message in self.messages:
            if self.dead and message.state == READY and message.receives >= self._most_receives:
                self._move(message, self.dead.queue, 0)

    def _move(self, message: Message, queue: Queue, seconds: float) -> None:
        # A copy: the queue may still hold on to what was deleted, and knows it by its state alone.
        moved = _copy(message)
        moved.receives = message.receives
        self.queue.delete(message)
        queue.put(moved, seconds)


def _copy(message: Message) -> Message:
    return Message(
        message.id, message.body, message.body_md5, message.attributes, message.attributes_md5,
        message.group,
    )  # fmt: skip


def entry_id(message: Message) -> int:
    """Give the entry that a message points at; 0 for an event."""
    return int(json.loads(message.body).get("entry", 0))


class SimulatedSqs:
    """What a process calls: the actions of the SQS client that the product uses."""

    def __init__(self, gate: Gate, queues: Mapping[str, FaultyQueue]) -> None:
        self._gate = gate
        self._queues = queues
        self.is_hasty = False

    async def receive_message(self, *, QueueUrl: str, **parameters: Any) -> dict[str, Any]:
        faulty = self._queues[QueueUrl]
        parameters["WaitTimeSeconds"] = 0

        def act(_: Fate) -> dict[str, Any]:
            faulty.bury()
            answer = messages.receive(faulty.queue, parameters)
            assert isinstance(answer, dict), "nothing waits here"
            return answer

        # A long poll stays open while there is nothing to answer; who drains, waits its end out.
        return await self._call(
            "receive", act, lambda: self.is_hasty or faulty.has_ready() or faulty.dead is None
        )

    async def send_message_batch(self, *, QueueUrl: str, Entries: list[Any]) -> dict[str, Any]:
        faulty = self._queues[QueueUrl]

        def send(entry: Any) -> dict[str, Any]:
            answer = messages.send(faulty.queue, entry, None)
            faulty.lost.discard(entry_id(faulty.messages[-1]))
            return answer

        return await self._batch("send", Entries, send)

    async def delete_message_batch(self, *, QueueUrl: str, Entries: list[Any]) -> dict[str, Any]:
        faulty = self._queues[QueueUrl]

        def delete(entry: Any) -> dict[str, Any]:
            before = faulty.messages
            answer = messages.delete(faulty.queue, entry)
            left = faulty.messages
            faulty.deleted.update(entry_id(message) for message in before if message not in left)
            return answer

        return await self._batch("delete", Entries, delete)

    async def change_message_visibility_batch(
        self, *, QueueUrl: str, Entries: list[Any]
    ) -> dict[str, Any]:
        faulty = self._queues[QueueUrl]
        return await self._batch(
            "hide", Entries, lambda one: messages.change_visibility(faulty.queue, one)
        )

    async def get_queue_attributes(self, **_: Any) -> dict[str, Any]:
        return await self._call("attributes", lambda _: {"Attributes": {}})

    async def _batch(self, action: str, entries: list[Any], carry_out: Any) -> dict[str, Any]:
        def act(fate: Fate) -> dict[str, Any]:
            failing = entries[::2] if fate is Fate.PARTLY else []
            taken = [entry for entry in entries if entry not in failing]
            successful, failed = messages.in_batch(taken, carry_out) if taken else ([], [])
            failed += [
                {"Id": entry["Id"], "Code": "InternalError", "SenderFault": False}
                for entry in failing
            ]
            return {"Successful": successful, "Failed": failed}

        return await self._call(action, act)

    async def _call(self, action: str, act: Any, is_ready: Any = lambda: True) -> dict[str, Any]:
        async def carry_out(fate: Fate) -> dict[str, Any]:
            answer: dict[str, Any] = act(fate)
            return answer

        return await self._gate.wait(f"sqs {action}", carry_out, _queue_away, is_ready)


def _queue_away() -> Exception:
    return EndpointConnectionError(endpoint_url="simulated")
