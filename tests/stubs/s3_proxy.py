"""A proxy before S3 that does to some requests what networks and disks do: lose, refuse, stall."""

import asyncio
import io
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web

Matches = Callable[[web.Request], bool]
_HOP = {"connection", "transfer-encoding", "content-length", "keep-alive", "date", "server"}


def puts(request: web.Request) -> bool:
    return request.method == "PUT" and "partNumber" not in request.query


def part(number: int) -> Matches:
    return lambda request: request.query.get("partNumber") == str(number)


@dataclass
class S3Proxy:
    """Forwards to ``target``, but for what ``refuse``, ``truncate`` and ``stall`` match.

    ``page`` answers everything instead, as a gateway would.
    """

    target: str
    url: str = ""
    page: Callable[[], web.Response] | None = None
    refuse: Matches | None = None
    refusal: tuple[int, str] = (503, "ServiceUnavailable")
    truncate: Matches | None = None
    stall: Matches | None = None
    stalled: asyncio.Event = field(default_factory=asyncio.Event)
    release: asyncio.Event = field(default_factory=asyncio.Event)
    calls: list[tuple[str, str]] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.calls.append((request.method, request.path_qs))
        body = await request.read()
        if self.page is not None:
            return self.page()
        if self.refuse is not None and self.refuse(request):
            status, code = self.refusal
            text = f"<Error><Code>{code}</Code><Message>secret</Message></Error>"
            return web.Response(status=status, text=text, content_type="application/xml")
        if self.stall is not None and self.stall(request):
            self.stalled.set()
            await self.release.wait()
        headers = {
            name: value
            for name, value in request.headers.items()
            if name.lower() not in _HOP | {"expect"}
        }
        if self.truncate is not None and self.truncate(request):
            body = body[: len(body) // 2]
            headers = {
                name: value
                for name, value in headers.items()
                if not name.lower().startswith(("x-amz-checksum", "x-amz-content-sha256"))
            } | {"x-amz-content-sha256": "UNSIGNED-PAYLOAD"}
        async with (
            aiohttp.ClientSession(auto_decompress=False) as session,
            session.request(
                request.method,
                self.target + request.path_qs,
                headers=headers,
                data=io.BytesIO(body),
            ) as answer,
        ):
            answer_headers = {
                name: value for name, value in answer.headers.items() if name.lower() not in _HOP
            }
            response = web.StreamResponse(status=answer.status, headers=answer_headers)
            content = await answer.read()
            if request.method == "HEAD":
                response.content_length = int(answer.headers.get("Content-Length", 0))
            else:
                response.content_length = len(content)
            await response.prepare(request)
            if request.method != "HEAD":
                await response.write(content)
            return response


@asynccontextmanager
async def s3_proxy(target: str) -> AsyncIterator[S3Proxy]:
    proxy = S3Proxy(target)
    app = web.Application(client_max_size=1024**3)
    app.router.add_route("*", "/{path:.*}", proxy.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    proxy.url = f"http://{host}:{port}"
    try:
        yield proxy
    finally:
        proxy.release.set()
        await runner.cleanup()
