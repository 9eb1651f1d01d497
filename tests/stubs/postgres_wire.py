"""As much of Postgres's wire protocol as a proxy must see: where messages end and what they are."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_CANCEL, _SSL, _GSS = 80_877_102, 80_877_103, 80_877_104
STARTUP = b""


@dataclass(frozen=True, slots=True)
class WireMessage:
    """One message; ``kind`` is its type byte, or nothing for those before the session."""

    kind: bytes
    raw: bytes

    @property
    def payload(self) -> bytes:
        return self.raw[5:] if self.kind else self.raw[4:]


class Splitter:
    """Cuts one direction of a connection into messages."""

    def __init__(self, *, from_client: bool) -> None:
        self._starting = from_client
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[WireMessage]:
        """Take bytes in; give the messages that are complete now."""
        self._buffer += data
        while True:
            head = 0 if self._starting else 1
            if len(self._buffer) < head + 4:
                return
            (length,) = struct.unpack_from("!I", self._buffer, head)
            if len(self._buffer) < head + length:
                return
            raw = bytes(self._buffer[: head + length])
            del self._buffer[: head + length]
            if self._starting and struct.unpack_from("!I", raw, 4)[0] not in (_CANCEL, _SSL, _GSS):
                self._starting = False
            yield WireMessage(raw[:head], raw)


Matches = Callable[[WireMessage], bool]


def is_ssl_request(message: WireMessage) -> bool:
    return message.kind == STARTUP and message.payload == struct.pack("!I", _SSL)


def is_commit(message: WireMessage) -> bool:
    """The end of a transaction that was opened with BEGIN."""
    return message.kind == b"Q" and message.payload.strip(b"\0; ").upper() == b"COMMIT"


def is_sync_after_execute() -> Matches:
    """The end of a statement that commits by itself: the Sync that follows its Execute."""
    executed = False

    def matches(message: WireMessage) -> bool:
        nonlocal executed
        if message.kind == b"E":
            executed = True
        return executed and message.kind == b"S"

    return matches
