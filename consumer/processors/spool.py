"""A place for a file's bytes between the query that gives them and the upload that takes them."""

from __future__ import annotations

import asyncio
import tempfile
from typing import IO, TYPE_CHECKING, Self

from schema.errors import Fault

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_MEMORY_BYTES = 1024 * 1024
_READ_BYTES = 1024 * 1024


class Spool:
    """Holds up to a megabyte in memory and the rest in an unnamed file, gone when it closes."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self._memory = bytearray()
        self._file: IO[bytes] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    async def add(self, data: bytes) -> None:
        """Append; raise ``Fault`` when the disk is full or fails."""
        self._memory += data
        self.size_bytes += len(data)
        if len(self._memory) > _MEMORY_BYTES:
            await self._flush()

    async def chunks(self) -> AsyncIterator[bytes]:
        """Give back what was added, from the start, a megabyte at a time."""
        if self._file is None:
            yield bytes(self._memory)
            return
        await self._flush()
        self._file.seek(0)
        while chunk := await asyncio.to_thread(self._file.read, _READ_BYTES):
            yield chunk

    async def _flush(self) -> None:
        data, self._memory = self._memory, bytearray()
        try:
            # Shielded: a cancelled write would go on in its thread, into a file being closed.
            await asyncio.shield(asyncio.ensure_future(asyncio.to_thread(self._write, data)))
        except OSError as error:
            reason = f"no room to spool an export in {tempfile.gettempdir()}: {error.strerror}"
            raise Fault(reason) from error

    def _write(self, data: bytearray) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="haulage-export-")  # noqa: SIM115 - closed by us
        self._file.write(data)
