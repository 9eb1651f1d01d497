"""Serving HTTP inside our own task group, and the health that every process shows."""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from infra.http_limits import LIMITS, limited
from infra.patience import within
from infra.retry import sleep_unless
from schema.errors import HaulageError, Misconfigured

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from starlette.requests import Request
    from starlette.types import ASGIApp

    from infra.http_limits import HttpLimits
    from infra.telemetry.exposition import Exposition

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_CHECK_TIMEOUT_SECONDS = 3.0
_GRACEFUL_SECONDS = 10
_TICK_SECONDS = 1.0


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
    _outcomes: dict[str, str] = field(default_factory=dict)

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
        checks = await asyncio.gather(*map(self._outcome, self.checks))
        report = dict(zip(self.checks, checks, strict=True))
        draining = self.stop.is_set()
        ready = not draining and all(outcome == "ok" for outcome in report.values())
        status = "draining" if draining else "ready" if ready else "not ready"
        return JSONResponse({"status": status, "checks": report}, status_code=200 if ready else 503)

    async def _outcome(self, name: str) -> str:
        outcome = "ok"
        try:
            await within(_CHECK_TIMEOUT_SECONDS, self.checks[name]())
        except TimeoutError:
            outcome = f"no answer within {_CHECK_TIMEOUT_SECONDS:g} s"
        except HaulageError as error:
            outcome = str(error)
        except Exception as error:  # that a check fails is an answer too
            outcome = f"failed: {type(error).__name__}"
            if self._outcomes.get(name) != outcome:
                log.exception("health.check_failed", check=name)
        self._outcomes[name] = outcome
        return outcome


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers: the process has one place for signals."""

    def __init__(self, config: uvicorn.Config, stop: asyncio.Event) -> None:
        super().__init__(config)
        self._stop = stop

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        """Renew the date of answers each second; uvicorn's own asks ten times whether to end."""
        while not self._stop.is_set():
            await self.on_tick(0)
            await sleep_unless(self._stop)(_TICK_SECONDS)


async def serve_http(
    app: ASGIApp,
    *,
    host: str,
    port: int,
    stop: asyncio.Event,
    limits: HttpLimits = LIMITS,
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
            http=limited(limits),
            limit_concurrency=limits.connections,
            timeout_keep_alive=limits.keep_alive_seconds,
            timeout_graceful_shutdown=_GRACEFUL_SECONDS,
        ),
        stop,
    )
    log.info("http.listening", host=host, port=listener.getsockname()[1])
    await server.serve(sockets=[listener])


async def serve_health(health: Health, *, host: str, port: int, stop: asyncio.Event) -> None:
    """Serve the pages of the health on their own port until ``stop``; port 0 serves none."""
    if port:
        await serve_http(Starlette(routes=health.routes()), host=host, port=port, stop=stop)
