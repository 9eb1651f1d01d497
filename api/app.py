"""The application: every address, at ``/`` and again under ``/api``, behind the edge."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.routing import BaseRoute, Mount, Route, Router

from api.auth import Keys
from api.control import Control
from api.dead_letters import DeadLetters
from api.docs import Docs
from api.edge import Edge
from api.fields import FieldsReader
from api.history import History
from api.jobs import Jobs
from api.parked import Parked
from api.redrives import Redrives
from api.resource import Resource, nothing_here
from api.submit import Submitter
from api.timelines import Timelines
from infra.backlog import Scaling
from infra.telemetry.instruments import SILENT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp

    from api.exchange import Exchange
    from api.resource import Handler
    from infra.database import Database
    from infra.http import Health
    from infra.settings import Settings
    from infra.telemetry.instruments import Instruments
    from infra.wakeup import Notifier
    from schema.kinds import Kind

PREFIX = "/api"
# Asked every few seconds by whatever watches the process: no events worth a line or a span.
_PROBES = ("/livez", "/readyz", "/scaling", "/metrics")


def build_app(
    settings: Settings,
    *,
    database: Database,
    notifier: Notifier,
    kinds: Mapping[str, Kind],
    health: Health,
    instruments: Instruments = SILENT,
) -> ASGIApp:
    """Put the application together; it opens nothing and starts nothing by itself."""
    keys, fields = Keys(database), FieldsReader()
    submitter = Submitter(database, notifier)
    jobs = Jobs(
        settings,
        database=database,
        submitter=submitter,
        kinds=kinds,
        tracing=instruments.tracing,
    )
    control = Control(database, notifier, fields)
    redrives = Redrives(database, notifier, fields, kinds=kinds)
    letters, parked = DeadLetters(database), Parked(database, notifier, fields)
    scaling = Scaling(database, concurrency=settings.concurrency)
    timelines = Timelines(database, pool_size=settings.database_pool_size)
    behind_keys: dict[str, dict[str, Handler]] = {
        "/jobs": {"GET": jobs.list_all, "POST": jobs.submit},
        "/jobs/{jobId}": {"GET": jobs.show},
        "/jobs/{jobId}/inputs": {"GET": jobs.list_inputs},
        "/jobs/{jobId}/inputs/{ordinal}": {"GET": History(database).show},
        "/jobs/{jobId}/timeline": {"GET": timelines.of_job},
        "/correlations/{correlationId}": {"GET": timelines.of_correlation},
        **{
            f"/jobs/{{jobId}}/{name}": {"POST": handler}
            for name, handler in control.handlers().items()
        },
        "/jobs/{jobId}/reprocess": {"POST": redrives.reprocess_job},
        "/redrives/{redriveId}": {"GET": redrives.show},
        "/dlq": {"GET": letters.list_all},
        "/dlq/groups": {"GET": letters.list_groups},
        "/dlq/reprocess": {"POST": redrives.reprocess_letters},
        "/dlq/{jobId}/{ordinal}/reprocess": {"POST": redrives.reprocess_letter},
        "/parked": {"GET": parked.list_all},
        "/parked/messages/{id}/reprocess": {"POST": parked.reprocess_message},
        "/parked/messages/{id}/dismiss": {"POST": parked.dismiss_message},
        "/parked/entries/{id}/reprocess": {"POST": parked.reprocess_entry},
    }
    routes: list[BaseRoute] = [
        *(_route(path, Resource(path, it, keys=keys)) for path, it in behind_keys.items()),
        *(
            _route(path, Resource(path, {"GET": handler}, keys=None))
            for path, handler in Docs(kinds, settings).handlers().items()
        ),
        _route("/livez", _health("/livez", health.livez)),
        _route("/readyz", _health("/readyz", health.readyz)),
        _route("/scaling", _health("/scaling", scaling.page)),
        *(_route(path, _health(path, page)) for path, page in health.pages.items()),
    ]
    under_prefix = Router(routes, redirect_slashes=False, default=nothing_here)
    both = [*routes, Mount(PREFIX, app=under_prefix)]
    router = Router(both, redirect_slashes=False, default=nothing_here)
    return Edge(
        router,
        instruments,
        unseen={f"{prefix}{path}" for prefix in ("", PREFIX) for path in _PROBES},
    )


def _health(path: str, check: Callable[[Request], Awaitable[Response]]) -> Resource:
    async def answer(request: Request, _exchange: Exchange) -> Response:
        return await check(request)

    return Resource(path, {"GET": answer}, keys=None, is_logged=False)


def _route(path: str, resource: Resource) -> Route:
    # A correlation id may hold slashes, escaped or not.
    return Route(path.replace("{correlationId}", "{correlationId:path}"), endpoint=resource)
