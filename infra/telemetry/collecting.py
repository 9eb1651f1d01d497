"""HTTP to a collector, which may answer anything, at any pace, without end.

requests bounds the silence between two bytes, not the call, and reads an answer whole; the
exporter of the SDK takes a redirect for success.
"""

from __future__ import annotations

import io
import socket
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import requests
from opentelemetry.exporter.otlp.proto.http._common import (
    _load_session_from_envvar,  # pyright: ignore[reportPrivateUsage] - no other way to its setting
)
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from urllib3 import HTTPConnectionPool

# What a collector answers is some bytes, or the reason of its refusal.
_ANSWER_BYTES = 16 * 1024
_DEFAULT_SECONDS = 10.0
# What ends an export as a failure that is told, and not tried again at once.
_Failed = requests.exceptions.RequestException


def traces_session() -> requests.Session:
    """Give a session for the exporter of traces; its calls end in time, whatever is answered."""
    return _bounded(
        _load_session_from_envvar("OTEL_PYTHON_EXPORTER_OTLP_HTTP_TRACES_CREDENTIAL_PROVIDER")
    )


def metrics_session() -> requests.Session:
    """Give the same for the exporter of metrics."""
    return _bounded(
        _load_session_from_envvar("OTEL_PYTHON_EXPORTER_OTLP_HTTP_METRICS_CREDENTIAL_PROVIDER")
    )


def _bounded(provided: requests.Session | None) -> requests.Session:
    session = provided or requests.Session()
    for prefix, adapter in list(session.adapters.items()):
        # One of a credential provider's own may be what signs the request: it stays.
        if type(adapter) is HTTPAdapter:
            session.mount(prefix, _Adapter())
    return session


class _Adapter(HTTPAdapter):
    """Sends a request and reads a short answer, both within its timeout."""

    def get_connection_with_tls_context(self, *args: Any, **more: Any) -> HTTPConnectionPool:  # noqa: ANN401
        pool = super().get_connection_with_tls_context(*args, **more)
        pool.ConnectionCls = _NOTED.get(pool.ConnectionCls, pool.ConnectionCls)
        return pool

    def send(self, *args: Any, **more: Any) -> requests.Response:  # noqa: ANN401
        """Give the answer; what is neither success nor refusal raises."""
        timeout = more.get("timeout")
        seconds = timeout if isinstance(timeout, int | float) else _DEFAULT_SECONDS
        with _call(seconds) as call:
            try:
                response = super().send(*args, **{**more, "stream": True})
                body = _read(response)
            except (OSError, HTTPError) as error:
                # What it was cut off in says nothing of why.
                if call.is_over:
                    raise _Failed(f"no whole answer within {seconds:.3g} s") from error
                raise
        if call.is_over:
            raise _Failed(f"no whole answer within {seconds:.3g} s")
        if 300 <= response.status_code < 400:  # noqa: PLR2004 - redirects
            raise _Failed(f"it answered {response.status_code}: redirects are not followed")
        if response.ok and len(body) > _ANSWER_BYTES:
            raise _Failed(f"it answered more than {_ANSWER_BYTES} bytes: it is no collector")
        response.raw = io.BytesIO(body[:_ANSWER_BYTES])
        return response


def _read(response: requests.Response) -> bytes:
    body: bytes = response.raw.read(_ANSWER_BYTES + 1, decode_content=False)
    if len(body) > _ANSWER_BYTES:
        response.raw.close()
    response.raw.release_conn()
    return body


class _Call:
    """One call, whose connection another thread may cut off."""

    def __init__(self) -> None:
        self.connection: HTTPConnection | None = None
        self.is_over = False

    def end(self) -> None:
        """Wake whoever reads, as if the collector had hung up."""
        self.is_over = True
        its_socket = self.connection.sock if self.connection else None
        if isinstance(its_socket, socket.socket):
            with suppress(OSError):
                # Not that of TLS, which would begin to talk.
                socket.socket.shutdown(its_socket, socket.SHUT_RDWR)


class _OfThread(threading.local):
    call: _Call | None = None


_OF_THREAD = _OfThread()


@contextmanager
def _call(seconds: float) -> Iterator[_Call]:
    """Have what this thread calls end after so long."""
    call = _OF_THREAD.call = _Call()
    timer = threading.Timer(seconds, call.end)
    timer.daemon = True
    timer.start()
    try:
        yield call
    finally:
        timer.cancel()
        call.connection = _OF_THREAD.call = None


def _note(connection: HTTPConnection) -> None:
    if _OF_THREAD.call is not None:
        _OF_THREAD.call.connection = connection


class _NotedHttp(HTTPConnection):
    def connect(self) -> None:
        _note(self)
        super().connect()

    def request(self, *args: Any, **more: Any) -> None:  # noqa: ANN401
        _note(self)
        super().request(*args, **more)


class _NotedHttps(_NotedHttp, HTTPSConnection):
    """The same of the other class, which is one of these as well."""


_NOTED: dict[type, type] = {HTTPConnection: _NotedHttp, HTTPSConnection: _NotedHttps}
