"""Postgres behind TLS, whatever the server at hand was built with: TLS ends here.

The key beside it is no secret: nothing but these tests trusts its certificate, which vouches for
127.0.0.1 and for no name.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from pathlib import Path

from tests.stubs.loopback import LoopbackServer
from tests.stubs.postgres_wire import Splitter, WireMessage, is_ssl_request

CERTIFICATE = Path(__file__).resolve().parent / "tls" / "certificate.pem"
_KEY = CERTIFICATE.with_name("key.pem")
_CHUNK_BYTES = 64 * 1024


class TlsServer(LoopbackServer):
    """Takes TLS and plain connections, and notes who came by which."""

    def __init__(self, socket_path: str) -> None:
        super().__init__()
        self.sessions: set[tuple[str, bool]] = set()
        self._socket_path = socket_path
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(CERTIFICATE, _KEY)

    def url(self, database: str, *, host: str = "127.0.0.1") -> str:
        return f"postgresql://postgres@{host}:{self.port}/{database}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        message, has_tls = await _first_message(reader), False
        if is_ssl_request(message):
            writer.write(b"S")
            await writer.drain()
            await writer.start_tls(self._context)
            message, has_tls = await _first_message(reader), True
        fields = message.payload[4:].rstrip(b"\0").decode(errors="replace").split("\0")
        parameters = dict(zip(fields[::2], fields[1::2], strict=False))
        self.sessions.add((parameters.get("application_name", ""), has_tls))
        behind = await asyncio.open_unix_connection(self._socket_path)
        behind[1].write(message.raw)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_pass_on(reader, behind[1]))
                group.create_task(_pass_on(behind[0], writer))
        except* OSError:
            pass  # as when a server ends a session
        finally:
            behind[1].close()


async def _first_message(reader: asyncio.StreamReader) -> WireMessage:
    """Read one message from before the session, and not a byte of what follows it."""
    head = await reader.readexactly(4)
    rest = await reader.readexactly(int.from_bytes(head) - 4)
    (message,) = Splitter(from_client=True).feed(head + rest)
    return message


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK_BYTES):
        writer.write(data)
        await writer.drain()
    with suppress(OSError):
        writer.close()
