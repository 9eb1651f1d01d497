"""The application: every address, at ``/`` and again under ``/api``, behind the edge."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.routing import BaseRoute, Mount, Route, Router

from api.auth import Keys
from api.docs import Docs
from api.edge import Edge
from api.jobs import Jobs
from api.resource import Resource, nothing_here
from api.submit import Submitter

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp

    from api.exchange import Exchange
    from infra.database import Database
    from infra.http import Health
    from infra.settings import Settings
    from infra.wakeup import Notifier
    from schema.kinds import Kind

PREFIX = "/api"


def build_app(
    settings: Settings,
    *,
    database: Database,
    notifier: Notifier,
    kinds: Mapping[str, Kind],
    health: Health,
) -> ASGIApp:
    """Put the application together; it opens nothing and starts nothing by itself."""
    keys = Keys(database)
    submitter = Submitter(database, notifier, copy_from_inputs=settings.copy_from_inputs)
    jobs = Jobs(settings, database=database, submitter=submitter, kinds=kinds)
    docs = Docs(kinds, settings)
    routes: list[BaseRoute] = [
        _route("/jobs", Resource("/jobs", {"GET": jobs.list_all, "POST": jobs.submit}, keys=keys)),
        _route("/jobs/{job_id}", Resource("/jobs/{jobId}", {"GET": jobs.show}, keys=keys)),
        _route(
            "/jobs/{job_id}/inputs",
            Resource("/jobs/{jobId}/inputs", {"GET": jobs.list_inputs}, keys=keys),
        ),
        *(
            _route(path, Resource(path, {"GET": handler}, keys=None))
            for path, handler in docs.handlers().items()
        ),
        _route("/livez", _health("/livez", health.livez)),
        _route("/readyz", _health("/readyz", health.readyz)),
    ]
    under_prefix = Router(routes, redirect_slashes=False, default=nothing_here)
    both = [*routes, Mount(PREFIX, app=under_prefix)]
    return Edge(Router(both, redirect_slashes=False, default=nothing_here))


def _health(path: str, check: Callable[[Request], Awaitable[Response]]) -> Resource:
    async def answer(request: Request, _exchange: Exchange) -> Response:
        return await check(request)

    # Asked every few seconds by whatever watches the process: not an event worth a line.
    return Resource(path, {"GET": answer}, keys=None, is_logged=False)


def _route(path: str, resource: Resource) -> Route:
    return Route(path, endpoint=resource)
