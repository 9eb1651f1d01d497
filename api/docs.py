"""The pages for people: the OpenAPI document and a reader for it that needs no internet."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import TYPE_CHECKING

from starlette.responses import RedirectResponse, Response

from api.openapi import openapi_document

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

    from api.exchange import Exchange
    from api.resource import Handler
    from infra.settings import Settings
    from schema.kinds import Kind

# Only what this server itself serves may run, and it may only talk to this server.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_PAGES = {
    "/docs": ("docs.html", "text/html"),
    "/docs/page.js": ("page.js", "text/javascript"),
    "/docs/page.css": ("page.css", "text/css"),
}


class Docs:
    """Serves the document and the page; everything is read once, when it is made."""

    def __init__(self, kinds: Mapping[str, Kind], settings: Settings) -> None:
        self._openapi = json.dumps(openapi_document(kinds, settings), ensure_ascii=False)
        folder = files("api") / "pages"
        self._pages = {path: (folder / name).read_bytes() for path, (name, _) in _PAGES.items()}

    def handlers(self) -> dict[str, Handler]:
        """Give the handler of each address."""
        pages = {path: self._page(path) for path in _PAGES}
        return {"/openapi.json": self._show_openapi, "/": self._go_to_docs, **pages}

    async def _show_openapi(self, _request: Request, _exchange: Exchange) -> Response:
        return Response(self._openapi, media_type="application/json")

    async def _go_to_docs(self, request: Request, _exchange: Exchange) -> Response:
        return RedirectResponse(f"{request.scope.get('root_path', '')}/docs")

    def _page(self, path: str) -> Handler:
        content, (_, media_type) = self._pages[path], _PAGES[path]

        async def show(_request: Request, _exchange: Exchange) -> Response:
            headers = {"Content-Security-Policy": _POLICY}
            return Response(content, media_type=media_type, headers=headers)

        return show
