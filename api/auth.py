"""Who is calling: bearer keys with 256 random bits, of which only the SHA-256 is kept."""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

from api.problems import Problem
from schema.statements.keys import find_key

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from starlette.datastructures import Headers

    from infra.database import Database

_KEY = re.compile(r"hlg_[A-Za-z0-9_-]{43}")
_KEY_BYTES = 32
# A revoked key may still pass for this long.
CACHE_SECONDS = 5.0
_CACHED_KEYS = 10_000


@dataclass(frozen=True, slots=True)
class Caller:
    """The owner of a key, and whether it may see what belongs to others."""

    owner_id: UUID
    owner: str
    is_admin: bool

    @property
    def scope(self) -> UUID | None:
        """Give the owner whose jobs it may see; none: all."""
        return None if self.is_admin else self.owner_id


def new_key() -> str:
    """Make a key; it is shown once and stored nowhere."""
    return "hlg_" + secrets.token_urlsafe(_KEY_BYTES)


def key_digest(key: str) -> bytes | None:
    """Give what is stored of a key; nothing for what cannot be one."""
    return hashlib.sha256(key.encode()).digest() if _KEY.fullmatch(key) else None


class Keys:
    """Looks keys up, and remembers the valid ones for a few seconds."""

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._clock = clock
        self._cache: dict[bytes, tuple[float, Caller]] = {}

    async def caller(self, headers: Headers) -> Caller:
        """Give the caller that the Authorization header names; raise the 401 otherwise."""
        values = headers.getlist("authorization")
        if len(values) != 1:
            raise _unauthorized("send Authorization: Bearer hlg_…", error=None)
        scheme, _, key = values[0].partition(" ")
        if scheme.lower() != "bearer":
            raise _unauthorized("send Authorization: Bearer hlg_…", error=None)
        caller = await self.find(key.strip(" "))
        if caller is None:
            raise _unauthorized("the API key is unknown, expired or revoked", error="invalid_token")
        return caller

    async def find(self, key: str) -> Caller | None:
        """Give the caller whose key it is, if it is valid."""
        digest = key_digest(key)
        if digest is None:
            return None
        now = self._clock()
        known = self._cache.get(digest)
        if known is not None and now < known[0]:
            return known[1]
        self._cache.pop(digest, None)
        for row in await self._database.fetch(find_key(digest)):
            caller = Caller(row.owner_id, row.owner, is_admin=row.role == "admin")
            lasting = CACHE_SECONDS if row.seconds_left is None else row.seconds_left
            if len(self._cache) >= _CACHED_KEYS:
                self._cache.clear()
            self._cache[digest] = (now + min(CACHE_SECONDS, lasting), caller)
            return caller
        return None


def _unauthorized(detail: str, *, error: str | None) -> Problem:
    challenge = 'Bearer realm="haulage"' + (f', error="{error}"' if error else "")
    return Problem(
        HTTPStatus.UNAUTHORIZED, "unauthorized", detail, headers={"WWW-Authenticate": challenge}
    )
