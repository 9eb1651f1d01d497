"""One standard queue: what is ready, what is hidden until when, and who waits for messages."""

from __future__ import annotations

import heapq
import itertools
import time
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

READY, IN_FLIGHT, DELAYED, GONE = range(4)
VISIBILITY_LIMIT_SECONDS = 43_200
_tags = itertools.count(1)


class Message:
    """One message on its way through a queue."""

    __slots__ = (
        "attributes", "attributes_md5", "body", "body_md5", "first_received_ms", "group", "id",
        "number", "received_at", "receives", "sent_ms", "state", "visible_at",
    )  # fmt: skip

    def __init__(
        self,
        message_id: str,
        body: str,
        body_md5: str,
        attributes: Mapping[str, Any],
        attributes_md5: str | None,
        group: str | None,
    ) -> None:
        self.id = message_id
        self.body = body
        self.body_md5 = body_md5
        self.attributes = attributes
        self.attributes_md5 = attributes_md5
        self.group = group
        self.sent_ms = time.time_ns() // 1_000_000
        self.number = 0
        self.state = READY
        self.receives = 0
        self.first_received_ms = 0
        self.received_at = 0.0
        self.visible_at = 0.0


class Poll:
    """A receive that waits; ``answer`` is called once, with nothing when the wait is over."""

    __slots__ = ("answer", "hidden_seconds", "most", "queue", "timer")

    def __init__(self, queue: Queue, most: int, hidden_seconds: float) -> None:
        self.queue = queue
        self.most = most
        self.hidden_seconds = hidden_seconds
        self.answer: Callable[[list[Message]], None] = lambda _: None
        self.timer: asyncio.TimerHandle | None = None

    def cancel(self) -> None:
        """Forget the poll: whoever asked is gone, and no message may go to it."""
        if self.timer is not None:
            self.timer.cancel()
        if self in self.queue.polls:
            self.queue.polls.remove(self)


class Queue:
    """A queue; every method is called on the event loop and none waits."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self.name = name
        self.tag = next(_tags)
        self.created_seconds = int(time.time())
        self.attributes: dict[str, str] = {}
        self.in_flight_limit = 120_000
        self.in_flight = self.delayed = self.ready_count = 0
        self.ready: deque[Message] = deque()
        self.polls: deque[Poll] = deque()
        self.messages: dict[int, Message] = {}
        self._loop = loop
        self._numbers = itertools.count(1)
        self._hidden: list[tuple[float, int, Message]] = []
        self._order = itertools.count()
        self._alarm: asyncio.TimerHandle | None = None

    def put(self, message: Message, delay_seconds: float) -> None:
        """Take a message in; ``serve`` must follow."""
        message.number = next(self._numbers)
        self.messages[message.number] = message
        if delay_seconds > 0:
            message.state = DELAYED
            self.delayed += 1
            self._hide_until(message, self._loop.time() + delay_seconds)
        else:
            self._make_ready(message)

    def take(self, most: int, hidden_seconds: float) -> list[Message]:
        """Give up to ``most`` ready messages and hide them; at the in-flight limit, none."""
        now = self._loop.time()
        self._wake_due(now)
        taken: list[Message] = []
        ready = self.ready
        while ready and len(taken) < most and self.in_flight < self.in_flight_limit:
            message = ready.popleft()
            if message.state != READY:
                continue
            self.ready_count -= 1
            message.receives += 1
            message.received_at = now
            if message.receives == 1:
                message.first_received_ms = time.time_ns() // 1_000_000
            message.state = IN_FLIGHT
            self.in_flight += 1
            self._hide_until(message, now + hidden_seconds)
            taken.append(message)
        return taken

    def poll(self, most: int, hidden_seconds: float, wait_seconds: float) -> Poll:
        """Wait for messages; the first to wait is the first to be served."""
        poll = Poll(self, most, hidden_seconds)
        poll.timer = self._loop.call_later(wait_seconds, self._give_up, poll)
        self.polls.append(poll)
        self._set_alarm()
        return poll

    def serve(self) -> None:
        """Hand what is ready to those who wait."""
        while self.polls:
            poll = self.polls[0]
            taken = self.take(poll.most, poll.hidden_seconds)
            if not taken:
                break
            self.polls.popleft()
            if poll.timer is not None:
                poll.timer.cancel()
            poll.answer(taken)
        self._set_alarm()

    def find(self, number: int) -> Message | None:
        """Give a message that was not deleted."""
        self._wake_due(self._loop.time())
        return self.messages.get(number)

    def delete(self, message: Message) -> None:
        """Forget a message, wherever it stands."""
        self._leave(message)
        message.state = GONE
        del self.messages[message.number]

    def change_visibility(self, message: Message, seconds: float) -> None:
        """Hide a message in flight until then; 0 makes it ready. ``serve`` must follow."""
        if seconds > 0:
            self._hide_until(message, self._loop.time() + seconds)
        else:
            self.in_flight -= 1
            self._make_ready(message)

    def seconds_since_receive(self, message: Message) -> float:
        """Give the age of the message's newest receipt."""
        return self._loop.time() - message.received_at

    def purge(self) -> None:
        """Forget everything."""
        self.ready.clear()
        self.messages.clear()
        self._hidden.clear()
        self.in_flight = self.delayed = self.ready_count = 0

    def close(self) -> None:
        """Stop timers; whoever waits gets nothing."""
        if self._alarm is not None:
            self._alarm.cancel()
        while self.polls:
            self._give_up(self.polls[0])

    def counts(self) -> tuple[int, int, int]:
        """Give how many are ready, in flight and delayed."""
        self._wake_due(self._loop.time())
        return self.ready_count, self.in_flight, self.delayed

    def _give_up(self, poll: Poll) -> None:
        poll.cancel()
        poll.answer([])

    def _make_ready(self, message: Message) -> None:
        message.state = READY
        message.visible_at = 0.0
        self.ready_count += 1
        self.ready.append(message)

    def _leave(self, message: Message) -> None:
        if message.state == READY:
            self.ready_count -= 1
        elif message.state == IN_FLIGHT:
            self.in_flight -= 1
        elif message.state == DELAYED:
            self.delayed -= 1

    def _hide_until(self, message: Message, at: float) -> None:
        message.visible_at = at
        heapq.heappush(self._hidden, (at, next(self._order), message))

    def _wake_due(self, now: float) -> None:
        hidden = self._hidden
        while hidden and hidden[0][0] <= now:
            at, _, message = heapq.heappop(hidden)
            # A later change of visibility left this line behind.
            if message.visible_at == at and message.state in (IN_FLIGHT, DELAYED):
                self._leave(message)
                self._make_ready(message)

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        while self._hidden and self._hidden[0][2].state in (GONE, READY):
            heapq.heappop(self._hidden)
        if self.polls and self._hidden:
            self._alarm = self._loop.call_at(self._hidden[0][0], self.serve)
