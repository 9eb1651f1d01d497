"""Identifiers: UUIDv7 for jobs, so that keys made close in time lie close in the index."""

from __future__ import annotations

import secrets
import time
from uuid import UUID

_VERSION_7 = 0x7
_VARIANT_RFC_9562 = 0b10


def uuid7(*, unix_ms: int | None = None, entropy: int | None = None) -> UUID:
    """Make a UUIDv7 (RFC 9562) from a Unix time in milliseconds and 74 random bits."""
    milliseconds = (time.time_ns() // 1_000_000 if unix_ms is None else unix_ms) & (2**48 - 1)
    random_bits = secrets.randbits(74) if entropy is None else entropy & (2**74 - 1)
    high = (milliseconds << 16) | (_VERSION_7 << 12) | (random_bits >> 62)
    low = (_VARIANT_RFC_9562 << 62) | (random_bits & (2**62 - 1))
    return UUID(int=(high << 64) | low)
