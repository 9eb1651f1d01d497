"""Serving HTTP inside our own task group, and the health that every process shows."""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING

import httptools
import structlog
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from infra.patience import within
from schema.errors import HaulageError, Misconfigured

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from starlette.requests import Request
    from starlette.types import ASGIApp

    from infra.telemetry.exposition import Exposition

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_CHECK_TIMEOUT_SECONDS = 3.0
_GRACEFUL_SECONDS = 10
# How exactly the bytes of an unfinished head are known.
_HEAD_PIECE_BYTES = 4 * 1024


@dataclass(slots=True)
class Health:
    """Whether this process lives (its loops still turn) and is ready (its neighbours answer)."""

    liveness_timeout_seconds: float
    checks: dict[str, Callable[[], Awaitable[object]]] = field(default_factory=dict)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    complaints: list[Callable[[], str | None]] = field(default_factory=list)
    # What else whoever watches the process may ask for, by its address.
    pages: dict[str, Callable[[Request], Awaitable[Response]]] = field(default_factory=dict)
    _turns: dict[str, float] = field(default_factory=dict)

    def turned(self, loop: str) -> None:
        """Note that a loop completed a good round."""
        self._turns[loop] = time.monotonic()

    def routes(self) -> list[Route]:
        """Give the endpoints."""
        both = {"/livez": self.livez, "/readyz": self.readyz}
        return [Route(path, page) for path, page in (both | self.pages).items()]

    def expose(self, exposition: Exposition | None) -> None:
        """Serve a page of metrics, where there are any."""
        if exposition is None:
            return

        async def metrics(_request: Request) -> Response:
            return Response(exposition.text(), media_type=exposition.content_type)

        self.pages["/metrics"] = metrics

    async def livez(self, _request: Request) -> JSONResponse:
        """Answer whether the process lives: its loops turned lately, and nobody complains."""
        now = time.monotonic()
        ages = {loop: round(now - turned, 1) for loop, turned in self._turns.items()}
        stuck = [loop for loop, age in ages.items() if age > self.liveness_timeout_seconds]
        stuck += filter(None, (complaint() for complaint in self.complaints))
        return JSONResponse(
            {
                "status": "stuck" if stuck else "alive",
                "secondsSinceLastRound": ages,
                "stuck": stuck,
            },
            status_code=503 if stuck else 200,
        )

    async def readyz(self, _request: Request) -> JSONResponse:
        """Answer whether the process is ready: its neighbours answer, and it is not draining."""
        checks = await asyncio.gather(*(_outcome(check) for check in self.checks.values()))
        report = dict(zip(self.checks, checks, strict=True))
        draining = self.stop.is_set()
        ready = not draining and all(outcome == "ok" for outcome in report.values())
        status = "draining" if draining else "ready" if ready else "not ready"
        return JSONResponse({"status": status, "checks": report}, status_code=200 if ready else 503)


async def _outcome(check: Callable[[], Awaitable[object]]) -> str:
    try:
        await within(_CHECK_TIMEOUT_SECONDS, check())
    except TimeoutError:
        return f"no answer within {_CHECK_TIMEOUT_SECONDS:g} s"
    except HaulageError as error:
        return str(error)
    return "ok"


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What a client may take before anything is known of it."""

    head_bytes: int = 32 * 1024
    head_fields: int = 200
    head_seconds: float = 10.0
    keep_alive_seconds: int = 5
    connections: int = 1_000


class _LimitedProtocol(HttpToolsProtocol):
    """uvicorn's protocol, which by itself takes headers without end, for as long as they take.

    Two numbers bound what the parser holds: the bytes of the fields that it reported, and those
    that came since it last reported anything, which are part of an unfinished field. Their sum
    is never more than the head really has. Trailers and chunk extensions count like headers.
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

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

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
        super().on_headers_complete()

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
        super().on_response_complete()
        if self._is_in_body and not self.transport.is_closing():
            # Answered before its body came: nobody waits for the rest for ever.
            self._start_timer()

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
        if self._is_answered():
            phrase = HTTPStatus(status).phrase
            self.transport.write(
                f"HTTP/1.1 {status} {phrase}\r\ncontent-type: text/plain; charset=utf-8\r\n"
                f"content-length: {len(text)}\r\nconnection: close\r\n\r\n{text}".encode()
            )
        # Else an answer is under way, and another in its midst would be taken for part of it.
        self.transport.close()

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
            self.transport.close()


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers: the process has one place for signals."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _limited(limits: HttpLimits) -> type[asyncio.Protocol]:
    return type("LimitedProtocol", (_LimitedProtocol,), {"limits": limits})


async def serve_http(
    app: ASGIApp,
    *,
    host: str,
    port: int,
    stop: asyncio.Event,
    limits: HttpLimits = HttpLimits(),
) -> None:
    """Serve an application until ``stop``, then finish open requests (within 10 s)."""
    try:
        listener = socket.create_server(
            (host, port),
            family=socket.AF_INET6 if ":" in host else socket.AF_INET,
            backlog=2048,
        )
    except OSError as error:
        raise Misconfigured(f"cannot listen on {host}:{port}: {error.strerror}") from error
    listener.setblocking(False)  # noqa: FBT003 - the socket's own signature
    server = _Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            http=_limited(limits),
            limit_concurrency=limits.connections,
            timeout_keep_alive=limits.keep_alive_seconds,
            timeout_graceful_shutdown=_GRACEFUL_SECONDS,
        )
    )
    log.info("http.listening", host=host, port=listener.getsockname()[1])
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(server.serve(sockets=[listener]), name="http")
        await stop.wait()
        server.should_exit = True
        await serving


async def serve_health(health: Health, *, host: str, port: int, stop: asyncio.Event) -> None:
    """Serve the pages of the health on their own port until ``stop``; port 0 serves none."""
    if port:
        await serve_http(Starlette(routes=health.routes()), host=host, port=port, stop=stop)
