"""What a client may take of an HTTP server before anything is known of it."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

import httptools
import structlog
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

if TYPE_CHECKING:
    import asyncio

    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

# How exactly the bytes of an unfinished head are known.
_HEAD_PIECE_BYTES = 4 * 1024


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """The limits; by default those of every process."""

    head_bytes: int = 32 * 1024
    head_fields: int = 200
    head_seconds: float = 10.0
    keep_alive_seconds: int = 5
    connections: int = 1_000
    # How long what was written may stay unread: so long, and as long again as a slow line takes.
    unread_seconds: float = 20.0
    unread_bytes_per_second: int = 16 * 1024


LIMITS = HttpLimits()


class _LimitedProtocol(HttpToolsProtocol):
    """uvicorn's protocol, which by itself waits without end for headers, and for its readers.

    Two numbers bound what the parser holds: the bytes of the fields that it reported, and those
    that came since it last reported anything, which are part of an unfinished field. Their sum
    is never more than the head really has. Trailers and chunk extensions count like headers.

    The connection of a client that does not read its answers is aborted in the end: one that is
    merely closed waits until what it holds was read.
    """

    limits: HttpLimits
    _told_bytes = 0
    _fields = 0
    _silent_bytes = 0
    _has_reported = False
    # Between its first byte and the end of its headers; then until the end of its body.
    _is_in_head = False
    _is_in_body = False
    _refusal: tuple[int, str] | None = None
    _timer: asyncio.TimerHandle | None = None
    _unread_timer: asyncio.TimerHandle | None = None
    # What is being answered: ``cycle`` is the request that came last, which may have to wait.
    _answering: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._stop_unread_timer()
        if self._answering is not None and not self._answering.response_complete:
            # Else it would write on, into a transport that is gone.
            self._answering.disconnected = True
            self._answering.message_event.set()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_unread_timer()

    def resume_writing(self) -> None:
        self._stop_unread_timer()
        super().resume_writing()
        self._watch_closing()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._watch_closing()

    def data_received(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest and not self.transport.is_closing():
            piece = rest if self._is_in_body else rest[:_HEAD_PIECE_BYTES]
            rest = rest[len(piece) :]
            self._has_reported = False
            super().data_received(bytes(piece))
            self._silent_bytes = 0 if self._has_reported else self._silent_bytes + len(piece)
            if self._told_bytes + self._silent_bytes > self.limits.head_bytes:
                self._refuse(431, "The headers are too large.")
        if self.transport.is_closing():
            return
        if not self._is_in_body and (self._is_in_head or self._is_answered()):
            # White space between requests ends uvicorn's keep-alive timeout, and begins nothing.
            self._start_timer()

    def on_message_begin(self) -> None:
        self._has_reported = self._is_in_head = True
        self._told_bytes = self._fields = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields += 1
        self._count(len(name) + len(value) + len(":\r\n"))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._has_reported = self._is_in_body = True
        self._is_in_head = False
        self._stop_timer()
        is_next = self._is_answered()
        many = max(len(self.connections), len(self.tasks))
        if many >= self.limits.connections:
            log.warning("http.refused", status=503, connections=many)
        super().on_headers_complete()
        if is_next:
            self._answering = self.cycle

    def on_body(self, body: bytes) -> None:
        self._has_reported = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._has_reported = True
        self._is_in_body = False
        self._told_bytes = self._fields = 0
        self._stop_timer()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._answering = self.pipeline[-1][0] if self.pipeline else None
        super().on_response_complete()
        if self._is_in_body and not self.transport.is_closing():
            # Answered before its body came: nobody waits for the rest for ever.
            self._start_timer()
        self._watch_closing()

    def _unsupported_upgrade_warning(self) -> None:
        """Say nothing: it is answered as if it had not asked for an upgrade, and logged so."""

    def send_400_response(self, msg: str) -> None:
        status, text = self._refusal or (400, msg)
        self._refuse(status, text)

    def _count(self, many: int) -> None:
        self._has_reported = True
        self._told_bytes += many
        if self._told_bytes > self.limits.head_bytes or self._fields > self.limits.head_fields:
            self._refusal = 431, "The headers are too large."
            # The parser stops, and uvicorn asks for a 400.
            raise httptools.HttpParserError(self._refusal[1])

    def _refuse(self, status: int, text: str) -> None:
        self._stop_timer()
        if self.transport.is_closing():
            return
        log.debug("http.refused", status=status)
        if self._is_answered():
            phrase = HTTPStatus(status).phrase
            self.transport.write(
                f"HTTP/1.1 {status} {phrase}\r\ncontent-type: text/plain; charset=utf-8\r\n"
                f"content-length: {len(text)}\r\nconnection: close\r\n\r\n{text}".encode()
            )
        # Else an answer is under way, and another in its midst would be taken for part of it.
        self._close()

    def _is_answered(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self.limits.head_seconds, self._time_out)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_out(self) -> None:
        self._timer = None
        if self.transport.is_closing():
            return
        if not self._is_answered():
            # Part of the next request came early; it may have to wait for this answer.
            self._start_timer()
        elif self._is_in_head:
            self._refuse(408, "The headers did not arrive in time.")
        else:
            self._close()

    def _close(self) -> None:
        self.transport.close()
        self._watch_closing()

    def _watch_closing(self) -> None:
        """See to it that a transport that was closed ends, even if nobody reads what it holds."""
        if self.transport.is_closing() and self.transport.get_write_buffer_size():
            self._start_unread_timer()

    def _start_unread_timer(self) -> None:
        if self._unread_timer is None:
            limits, unread_bytes = self.limits, self.transport.get_write_buffer_size()
            seconds = limits.unread_seconds + unread_bytes / limits.unread_bytes_per_second
            self._unread_timer = self.loop.call_later(seconds, self.transport.abort)

    def _stop_unread_timer(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None


def limited(limits: HttpLimits) -> type[asyncio.Protocol]:
    """Give uvicorn a protocol that keeps to the limits."""
    return type("LimitedProtocol", (_LimitedProtocol,), {"limits": limits})
