"""A pooler in transaction mode, as strict as one can be: each transaction meets another session.

PgBouncer gives a client whichever server session is free; this one always gives the session
that was not used for longest, so that whatever leans on a session of its own fails at once. Like
PgBouncer it refuses startup parameters that it does not know.
"""

from __future__ import annotations

import asyncio
import struct
from dataclasses import dataclass
from typing import Self

from tests.stubs.loopback import LoopbackServer
from tests.stubs.postgres_wire import STARTUP, Splitter, WireMessage, is_ssl_request

_CHUNK_BYTES = 64 * 1024
_PROTOCOL_3 = 196_608
_KNOWN_PARAMETERS = frozenset(
    {"user", "database", "application_name", "client_encoding", "datestyle", "timezone",
     "standard_conforming_strings"}
)  # fmt: skip


@dataclass(slots=True, eq=False)
class _Session:
    """One session at the server."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    splitter: Splitter


class TransactionPooler(LoopbackServer):
    """Pools ``sessions`` sessions of one database, reached through the server's socket."""

    def __init__(self, socket_path: str, *, database: str, sessions: int = 3) -> None:
        super().__init__()
        self.transactions = 0
        self._socket_path = socket_path
        self._database = database
        self._wanted = sessions
        self._sessions: list[_Session] = []
        self._idle: asyncio.Queue[_Session] = asyncio.Queue()
        self._greeting = b""

    async def __aenter__(self) -> Self:
        for _ in range(self._wanted):
            session = await self._open_session()
            self._sessions.append(session)
            self._idle.put_nowait(session)
        return await super().__aenter__()

    async def __aexit__(self, *about: object) -> None:
        await super().__aexit__(*about)
        for session in self._sessions:
            session.writer.close()
            await session.writer.wait_closed()

    async def _open_session(self) -> _Session:
        reader, writer = await asyncio.open_unix_connection(self._socket_path)
        parameters = {"user": "postgres", "database": self._database}
        body = b"".join(f"{k}\0{v}\0".encode() for k, v in parameters.items()) + b"\0"
        writer.write(struct.pack("!II", len(body) + 8, _PROTOCOL_3) + body)
        session = _Session(reader, writer, Splitter(from_client=False))
        greeting = bytearray()
        while True:
            for message in session.splitter.feed(await reader.read(_CHUNK_BYTES)):
                assert message.kind != b"E", message.payload
                greeting += message.raw
                if message.kind == b"Z":
                    self._greeting = bytes(greeting)
                    return session

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        splitter = Splitter(from_client=True)
        session: _Session | None = None
        answering: asyncio.Task[None] | None = None
        while data := await reader.read(_CHUNK_BYTES):
            for message in splitter.feed(data):
                if message.kind == STARTUP:
                    writer.write(self._greet(message))
                    continue
                if message.kind == b"X":
                    return
                if answering is None or answering.done():
                    session = await self._idle.get()
                    self.transactions += 1
                    answering = self._begin(self._answer(session, writer))
                assert session is not None, "taken with the task"
                session.writer.write(message.raw)

    def _greet(self, message: WireMessage) -> bytes:
        if is_ssl_request(message):
            return b"N"
        fields = message.payload[4:].rstrip(b"\0").decode().split("\0")
        unknown = [name for name in fields[::2] if name.lower() not in _KNOWN_PARAMETERS]
        if not unknown:
            return self._greeting
        text = f"unsupported startup parameter: {unknown[0]}"
        body = f"SFATAL\0VFATAL\0C08P01\0M{text}\0\0".encode()
        return b"E" + struct.pack("!I", len(body) + 4) + body

    async def _answer(self, session: _Session, writer: asyncio.StreamWriter) -> None:
        """Pass answers on until the server says that it is outside a transaction."""
        while True:
            for message in session.splitter.feed(await session.reader.read(_CHUNK_BYTES)):
                idle = message.kind == b"Z" and message.payload == b"I"
                if idle:
                    self._idle.put_nowait(session)
                writer.write(message.raw)
                if idle:
                    return
