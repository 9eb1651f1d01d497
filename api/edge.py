"""The outermost layer: correlation, security headers, one log event, and no error that escapes."""

from __future__ import annotations

import time
from http import HTTPStatus
from typing import TYPE_CHECKING

import structlog
from sqlalchemy import exc as sa_exc
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect

from api.exchange import Exchange
from api.problems import Problem, unavailable
from api.tracing import begun, read_trace
from infra.retry import is_lock_timeout, is_statement_timeout, sqlstate
from infra.telemetry import names
from infra.telemetry.instruments import SILENT
from infra.telemetry.logs import traced
from infra.telemetry.tracing import OFF, continued, mark_failed
from schema.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Collection
    from contextlib import AbstractContextManager

    from opentelemetry.trace import Span
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from infra.telemetry.instruments import Instruments
    from schema.message import Trace

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_DATA_EXCEPTIONS = "22"  # the class of what a value itself is to blame for
_CLIENT_CLOSED_REQUEST = 499
# As the semantic conventions have it: a client must not be able to make series of metrics.
_METHODS = frozenset({
    "CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE",
})  # fmt: skip
_OTHER_METHOD = "_OTHER"
_SECURITY_HEADERS = {
    b"x-content-type-options": b"nosniff",
    b"content-security-policy": b"default-src 'none'; frame-ancestors 'none'",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-resource-policy": b"same-origin",
    b"cache-control": b"no-store",
}


class Edge:
    """Wraps the whole application; whatever happens inside, the client gets an answer."""

    def __init__(
        self,
        app: ASGIApp,
        instruments: Instruments = SILENT,
        *,
        unseen: Collection[str] = (),
    ) -> None:
        self._app = app
        self._instruments = instruments
        self._unseen = frozenset(unseen)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
            return
        trace = read_trace(Headers(scope=scope))
        with self._span(trace, scope) as span:
            exchange = Exchange(begun(continued(trace, span)))
            exchange.attach(scope)
            with traced(exchange.trace):
                began = time.perf_counter()
                try:
                    await self._serve(exchange, scope, receive, send)
                finally:
                    seconds = time.perf_counter() - began
                    _write(exchange, scope, seconds)
                    if scope["path"] not in self._unseen:
                        self._instruments.metrics.request(
                            method=_method(scope),
                            route=exchange.route,
                            status=exchange.status,
                            seconds=seconds,
                        )
                    _describe(span, exchange, _method(scope))

    def _span(self, trace: Trace, scope: Scope) -> AbstractContextManager[Span]:
        tracing = OFF if scope["path"] in self._unseen else self._instruments.tracing
        return tracing.serving(
            trace,
            name=_span_name(_method(scope)),
            attributes={
                names.HTTP_METHOD: _method(scope),
                **_original_method(scope),
                names.URL_PATH: scope["path"],
                names.URL_SCHEME: scope["scheme"],
            },
        )

    async def _serve(self, exchange: Exchange, scope: Scope, receive: Receive, send: Send) -> None:
        async def counting_receive() -> Message:
            message = await receive()
            exchange.request_bytes += len(message.get("body", b""))
            return message

        async def finishing_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                # An answer has few headers: they are put together anew, the last of a name wins.
                answered = exchange.answered_correlation_id or exchange.trace.correlation_id
                headers = {**_SECURITY_HEADERS, **dict(message["headers"])}
                headers[b"x-correlation-id"] = answered.encode("latin-1")
                message["headers"] = list(headers.items())
            exchange.response_bytes += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, counting_receive, finishing_send)
        except ClientDisconnect:
            exchange.status = _CLIENT_CLOSED_REQUEST
        except Exception as error:  # the last resort: every error becomes an answer
            problem = _problem(error)
            if exchange.status is not None:
                log.exception("http.broken_off")
                raise
            response = problem.response(exchange.trace.correlation_id)
            await response(scope, counting_receive, finishing_send)


def _method(scope: Scope) -> str:
    method: str = scope["method"]
    return method if method in _METHODS else _OTHER_METHOD


def _original_method(scope: Scope) -> dict[str, str]:
    method: str = scope["method"]
    return {} if method in _METHODS else {names.HTTP_METHOD_ORIGINAL: method}


def _span_name(method: str) -> str:
    return "HTTP" if method == _OTHER_METHOD else method


def _problem(error: Exception) -> Problem:
    if isinstance(error, Problem):
        return error
    if is_statement_timeout(error):
        log.warning("http.statement_timeout", error=str(error))
        return unavailable("the database did not answer in time; nothing was lost, try again")
    if is_lock_timeout(error):
        log.warning("http.row_in_other_hands", error=str(error))
        return unavailable(
            "what this needs is in other hands: a lock in the database; nothing was lost, try again"
        )
    if isinstance(error, Unavailable):
        log.warning("http.neighbour_away", error=str(error))
        return unavailable("the database is away; nothing was lost, try again")
    if isinstance(error, sa_exc.DBAPIError) and (sqlstate(error) or "").startswith(
        _DATA_EXCEPTIONS
    ):
        # The checks let a value pass that cannot be kept: still no fault of this process.
        log.warning("http.unstorable", error=str(error.orig))
        return Problem(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            "invalid-request",
            "a value of the request cannot be stored",
        )
    log.error("http.unexpected", exc_info=error)
    return Problem(
        HTTPStatus.INTERNAL_SERVER_ERROR,
        "internal",
        "an unexpected error; the correlation id finds it in the logs",
    )


def _describe(span: Span, exchange: Exchange, method: str) -> None:
    """Say what is known of a request once it is answered."""
    if not span.is_recording():
        return
    if exchange.route is not None:
        span.update_name(f"{_span_name(method)} {exchange.route}")
        span.set_attribute(names.HTTP_ROUTE, exchange.route)
    if exchange.status is not None:
        span.set_attribute(names.HTTP_STATUS, exchange.status)
        if exchange.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            mark_failed(span, str(exchange.status), "")
    if exchange.caller is not None:
        span.set_attribute(names.OWNER, exchange.caller.owner)
    if exchange.job is not None:
        span.set_attribute(names.JOB_KEY, exchange.job)


def _write(exchange: Exchange, scope: Scope, seconds: float) -> None:
    if not exchange.is_logged:
        return
    log.info(
        "http.request",
        method=scope["method"],
        route=exchange.route,
        status=exchange.status,
        duration_ms=round(seconds * 1_000, 1),
        request_bytes=exchange.request_bytes,
        response_bytes=exchange.response_bytes,
        owner=exchange.caller.owner if exchange.caller else None,
        job=exchange.job,
        inputs=exchange.inputs,
        replayed=exchange.replayed,
        status_before=exchange.status_before,
        status_after=exchange.status_after,
        redrive=exchange.redrive,
    )
