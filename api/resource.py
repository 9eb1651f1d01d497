"""An address and what may be done there: OPTIONS, HEAD, 405 and the key are dealt with once."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from api.exchange import Exchange
from api.problems import Problem, not_found

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from starlette.types import Receive, Scope, Send

    from api.auth import Keys

    Handler = Callable[[Request, Exchange], Awaitable[Response]]


class Resource:
    """One route: a handler per method; without ``keys`` it is open to everybody."""

    def __init__(
        self,
        template: str,
        handlers: Mapping[str, Handler],
        *,
        keys: Keys | None,
        is_logged: bool = True,
    ) -> None:
        self._template = template
        self._handlers = dict(handlers)
        self._keys = keys
        self._is_logged = is_logged
        offered = {*handlers, "OPTIONS"} | ({"HEAD"} if "GET" in handlers else set())
        self._allow = ", ".join(sorted(offered))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        request = Request(scope, receive)
        exchange = Exchange.of(scope)
        exchange.route = self._template
        exchange.is_logged = self._is_logged
        response = await self._respond(request, exchange)
        await response(scope, receive, send)

    async def _respond(self, request: Request, exchange: Exchange) -> Response:
        if request.method == "OPTIONS":
            return Response(status_code=HTTPStatus.NO_CONTENT, headers={"Allow": self._allow})
        handler = self._handlers.get("GET" if request.method == "HEAD" else request.method)
        if handler is None:
            raise Problem(
                HTTPStatus.METHOD_NOT_ALLOWED,
                "method-not-allowed",
                f"this address takes {self._allow}",
                headers={"Allow": self._allow},
            )
        if self._keys is not None:
            exchange.caller = await self._keys.caller(request.headers)
        return await handler(request, exchange)


async def nothing_here(_scope: Scope, _receive: Receive, _send: Send) -> None:
    """Refuse every address that is no resource's."""
    raise not_found()
