"""A proxy for TCP that does to connections what networks do, when a test says so.

It passes, refuses, resets (now, after so many bytes, at a message of Postgres's protocol), holds
everything back without a word (and delivers it later, as TCP does after a partition), leaves
clients half open, and is slow. Everything is a method or an attribute; nothing waits for time.
"""

from __future__ import annotations

import asyncio
import enum
import socket
import struct
from dataclasses import dataclass, field
from typing import Self

from tests.stubs.postgres_wire import Matches, Splitter

_CHUNK_BYTES = 64 * 1024
_LINGER_ZERO = struct.pack("ii", 1, 0)


class Cut(enum.Enum):
    """When a connection is torn down: before a message is passed on, or before its answer is."""

    BEFORE = "before the message"
    BEFORE_ANSWER = "before the answer"


@dataclass(slots=True, eq=False)
class _Link:
    """One client connection and its counterpart at the target."""

    client: asyncio.StreamWriter
    target: asyncio.StreamWriter | None = None
    splitter: Splitter = field(default_factory=lambda: Splitter(from_client=True))
    answer_is_lost: bool = False
    half_open: bool = False

    def close(self) -> None:
        """Close both sides; what was written is still delivered."""
        for side in (self.client, self.target):
            if side is not None:
                side.transport.close()

    def reset(self) -> None:
        """Tear both sides down with RST."""
        for side in (self.client, self.target):
            if side is not None and not side.transport.is_closing():
                sock = side.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
                side.transport.abort()


class TcpProxy:
    """Listens on ``port`` of loopback for as long as its context lasts."""

    def __init__(self, host: str, port: int, *, postgres: bool = False) -> None:
        self.port = 0
        self.accepted = 0
        self.bytes_to_target = 0
        self.delay_seconds = 0.0
        self.bytes_per_second: float | None = None
        self.cut = asyncio.Event()
        self._target = host, port
        self._postgres = postgres
        self._server: asyncio.Server | None = None
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._passing = asyncio.Event()
        self._passing.set()
        self._watch: tuple[Matches, Cut] | None = None
        self._bytes_until_reset: int | None = None

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.refuse()
        self.reset()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def open_connections(self) -> int:
        return len(self._links)

    async def listen(self) -> None:
        """Accept connections (again)."""
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    async def refuse(self) -> None:
        """Refuse new connections from now on; those that stand are left alone."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def reset(self) -> None:
        """Reset every connection that stands now."""
        for link in list(self._links):
            link.reset()

    def reset_after(self, bytes_from_target: int) -> None:
        """Reset the connection over which this many more bytes have come from the target."""
        self._bytes_until_reset = bytes_from_target
        self.cut.clear()

    def reset_at(self, matches: Matches, cut: Cut) -> None:
        """Reset the first connection on which a client sends a message of Postgres's like this.

        ``cut`` is set once it has happened; one connection is reset, then all is well again.
        """
        assert self._postgres, "only Postgres's messages can be told apart"
        self._watch = (matches, cut)
        self.cut.clear()

    def hold(self) -> None:
        """Pass nothing on, either way, and no end of a connection either: a black hole."""
        self._passing.clear()

    def release(self) -> None:
        """Pass on what was held back, and everything from now on."""
        self._passing.set()

    def leave_half_open(self) -> None:
        """Close the target's side of every connection; clients are not told, nor ever answered."""
        for link in self._links:
            link.half_open = True
            if link.target is not None:
                link.target.transport.abort()

    async def outage(self) -> None:
        """Refuse new connections and reset those that stand."""
        await self.refuse()
        self.reset()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = asyncio.create_task(self._carry(reader, writer), name="link")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(writer)
        self._links.add(link)
        try:
            await self._passing.wait()
            target_reader, link.target = await asyncio.open_connection(*self._target)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass_on(link, reader, link.target, from_client=True))
                group.create_task(self._pass_on(link, target_reader, writer, from_client=False))
        except* OSError:
            pass  # either side went away: so does the other
        finally:
            link.close()
            self._links.discard(link)

    async def _pass_on(
        self,
        link: _Link,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        from_client: bool,
    ) -> None:
        while True:
            data = await reader.read(_CHUNK_BYTES)
            await self._passing.wait()
            if link.half_open:
                if from_client and data:
                    continue
                await asyncio.Event().wait()
            if not data:
                # As abrupt as the end of a process; nothing here needs half-closed connections.
                raise ConnectionAbortedError
            await self._be_slow(len(data))
            if from_client:
                self.bytes_to_target += len(data)
                data = self._watched(link, data)
            else:
                data = self._counted(link, data)
            writer.write(data)
            await writer.drain()

    async def _be_slow(self, length: int) -> None:
        seconds = self.delay_seconds
        if self.bytes_per_second is not None:
            seconds += length / self.bytes_per_second
        if seconds:
            await asyncio.sleep(seconds)

    def _watched(self, link: _Link, data: bytes) -> bytes:
        """Give what is passed on to the target; reset where the script says so."""
        if not self._postgres:
            return data
        passed = bytearray()
        for message in link.splitter.feed(data):
            if self._watch is not None and self._watch[0](message):
                _, cut = self._watch
                self._watch = None
                if cut is Cut.BEFORE:
                    self._cut(link)
                link.answer_is_lost = True
            passed += message.raw
        return bytes(passed)

    def _counted(self, link: _Link, data: bytes) -> bytes:
        """Give what is passed on to the client; reset where the script says so."""
        if link.answer_is_lost:
            self._cut(link)
        if self._bytes_until_reset is not None:
            left = self._bytes_until_reset
            self._bytes_until_reset -= len(data)
            if self._bytes_until_reset <= 0:
                self._bytes_until_reset = None
                link.client.write(data[:left])
                self._cut(link)
        return data

    def _cut(self, link: _Link) -> None:
        link.reset()
        self.cut.set()
        raise ConnectionResetError
