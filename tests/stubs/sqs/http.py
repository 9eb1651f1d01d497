"""HTTP/1.1 with keep-alive over one connection, as much of it as SDKs speak to SQS."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import TYPE_CHECKING, Any, cast

import httptools

from tests.stubs.sqs.errors import SqsError
from tests.stubs.sqs.faults import BlackHole, Page, Reset, Slow
from tests.stubs.sqs.messages import deliveries
from tests.stubs.sqs.queue import Poll

if TYPE_CHECKING:
    from tests.stubs.sqs.actions import Actions

_TARGET_PREFIX = "AmazonSQS."
_JSON = "application/x-amz-json-1.0"
_REASONS = {200: "OK", 400: "Bad Request", 403: "Forbidden", 500: "Internal Server Error"}
_request_numbers = itertools.count(1)
_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


class Connection(asyncio.Protocol):
    """One client connection; requests on it are answered one after the other."""

    def __init__(self, actions: Actions, connections: set[Connection]) -> None:
        self._actions = actions
        self._connections = connections
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._target = ""
        self._body: list[bytes] = []
        self._poll: Poll | None = None
        self._later: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the connection, so that the stub can close it."""
        # uvloop's transports have the methods without the base class.
        self._transport = cast(asyncio.Transport, transport)
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget what was asked: no message may go to a client that is gone."""
        del exc
        self._transport = None
        self._connections.discard(self)
        if self._poll is not None:
            self._poll.cancel()
        if self._later is not None:
            self._later.cancel()

    def data_received(self, data: bytes) -> None:
        """Read on; whatever is not HTTP ends the connection."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.close()

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Pick out the two headers that matter."""
        lowered = name.lower()
        if lowered == b"x-amz-target":
            self._target = value.decode("latin-1")
        elif lowered == b"expect" and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        """Collect the body."""
        self._body.append(body)

    def on_message_complete(self) -> None:
        """Carry out the request."""
        target, self._target = self._target, ""
        body, self._body = b"".join(self._body), []
        try:
            parameters = json.loads(body.decode() or "{}")
            action = target.removeprefix(_TARGET_PREFIX)
            answered = self._actions.carry_out(action, parameters)
        except ValueError:
            self._refuse(SqsError("SerializationException", "The request is not JSON."))
            return
        except SqsError as error:
            self._refuse(error)
            return
        match answered.fault:
            case BlackHole():
                return
            case Reset():
                if self._transport is not None:
                    self._transport.abort()
                return
            case Page(status, content_type, body):
                self._write(status, content_type, body)
                return
            case Slow(seconds):
                answer = answered.answer
                if isinstance(answer, Poll):
                    answer.cancel()
                    answer = {}
                loop = asyncio.get_running_loop()
                self._later = loop.call_later(seconds, self._answer, answer)
                return
        if isinstance(answered.answer, Poll):
            self._wait(answered.answer, parameters)
        else:
            self._answer(answered.answer)

    def _wait(self, poll: Poll, parameters: dict[str, Any]) -> None:
        self._poll = poll

        def answer(taken: list[Any]) -> None:
            self._poll = None
            self._answer(deliveries(poll.queue, taken, parameters))

        poll.answer = answer

    def _answer(self, answer: dict[str, Any]) -> None:
        self._write(200, _JSON, _encode(answer).encode())

    def _refuse(self, error: SqsError) -> None:
        body = _encode({"__type": f"com.amazonaws.sqs#{error.name}", "message": error.message})
        side = "Sender" if error.is_senders_fault else "Receiver"
        more = f"x-amzn-query-error: {error.code};{side}\r\n"
        self._write(error.status, _JSON, body.encode(), more)

    def _write(self, status: int, content_type: str, body: bytes, more: str = "") -> None:
        if self._transport is None:
            return
        reason = _REASONS.get(status, "Error")
        head = (
            f"HTTP/1.1 {status} {reason}\r\nContent-Type: {content_type}\r\n"
            f"x-amzn-RequestId: {next(_request_numbers):032x}\r\n"
            f"{more}Content-Length: {len(body)}\r\n\r\n"
        )
        self._transport.write(head.encode("latin-1") + body)
