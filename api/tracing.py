"""W3C trace context and baggage at the edge: what is stored is valid and within its limits."""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING

from infra.telemetry.logs import accept_correlation_id
from schema.message import Trace

if TYPE_CHECKING:
    from starlette.datastructures import Headers

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_KNOWN_FLAGS = 0x03  # sampled, random
_STATE_KEY = r"(?:[a-z][_0-9a-z\-*/]{0,255}|[a-z0-9][_0-9a-z\-*/]{0,240}@[a-z][_0-9a-z\-*/]{0,13})"
_STATE_MEMBER = re.compile(
    rf"({_STATE_KEY})=([\x20-\x2b\x2d-\x3c\x3e-\x7e]{{0,255}}[\x21-\x2b\x2d-\x3c\x3e-\x7e])"
)
_STATE_MEMBERS = 32
_STATE_CHARACTERS = 512
# Each is a repeated class and no more: one pattern for a whole member, with optional white space
# around optional parts, can be matched in exponentially many ways.
_BAGGAGE_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_BAGGAGE_VALUE = re.compile(r"[\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e]*")
_BAGGAGE_MEMBERS = 64
_BAGGAGE_BYTES = 8_192
_CARRIERS = frozenset({b"x-correlation-id", b"traceparent", b"tracestate", b"baggage"})


def read_trace(headers: Headers) -> Trace:
    """Give the client's trace where it is well formed; at least it has a correlation id."""
    given: dict[bytes, list[str]] = {}
    for name, value in headers.raw:
        if name in _CARRIERS:
            given.setdefault(name, []).append(value.decode("latin-1"))
    correlation_ids = given.get(b"x-correlation-id", ())
    correlation_id = accept_correlation_id(
        correlation_ids[0] if len(correlation_ids) == 1 else None
    )
    traceparents = given.get(b"traceparent", ())
    traceparent = read_traceparent(traceparents[0]) if len(traceparents) == 1 else None
    state = baggage = None
    if traceparent is not None and b"tracestate" in given:
        # Without a parent, a state has no meaning.
        state = read_tracestate(",".join(given[b"tracestate"]))
    if b"baggage" in given:
        baggage = read_baggage(",".join(given[b"baggage"]))
    return Trace(
        correlation_id=correlation_id, traceparent=traceparent, tracestate=state, baggage=baggage
    )


def begun(trace: Trace) -> Trace:
    """Begin a trace where neither the client nor a span of ours has: a job always has one."""
    if trace.traceparent is not None:
        return trace
    # That either is all zeros, which no trace may be, will not be seen before the sun burns out.
    ids = secrets.token_hex(16 + 8)
    parent = f"00-{ids[:32]}-{ids[32:]}-01"
    return Trace(trace.correlation_id, parent, trace.tracestate, trace.baggage)


def read_traceparent(header: str) -> str | None:
    """Give the parent as version 00 writes it, or nothing when it is malformed."""
    match = _TRACEPARENT.fullmatch(header.strip(" \t"))
    if match is None:
        return None
    version, trace_id, span_id, flags, rest = match.groups()
    if version == "ff" or (version == "00" and rest):
        return None
    if not trace_id.strip("0") or not span_id.strip("0"):
        return None
    return f"00-{trace_id}-{span_id}-{int(flags, 16) & _KNOWN_FLAGS:02x}"


def read_tracestate(header: str) -> str | None:
    """Give the state, cut from the right to 32 members and 512 characters; nothing if malformed."""
    members: dict[str, str] = {}
    for member in filter(None, (part.strip(" \t") for part in header.split(","))):
        match = _STATE_MEMBER.fullmatch(member)
        if match is None or match[1] in members:
            return None
        members[match[1]] = member
    kept = list(members.values())[:_STATE_MEMBERS]
    while kept and len(",".join(kept)) > _STATE_CHARACTERS:
        kept.pop()
    return ",".join(kept) or None


def read_baggage(header: str) -> str | None:
    """Give the well-formed members of the baggage, at most 64 and 8,192 bytes of them."""
    if len(header) > _BAGGAGE_BYTES:
        # What stands beyond the limit is not looked at, nor the member that crosses it.
        header = header[: _BAGGAGE_BYTES + 1].rpartition(",")[0]
    kept: list[str] = []
    size = -1
    for member in (part.strip(" \t") for part in header.split(",")):
        if not _is_baggage_member(member):
            continue
        size += len(member) + 1
        if len(kept) == _BAGGAGE_MEMBERS or size > _BAGGAGE_BYTES:
            break
        kept.append(member)
    return ",".join(kept) or None


def _is_baggage_member(member: str) -> bool:
    """Say whether this is ``name=value``, then ``;name`` or ``;name=value`` any number of times."""
    for position, part in enumerate(member.split(";")):
        name, equals, value = part.partition("=")
        if position == 0 and not equals:
            return False
        if not _BAGGAGE_NAME.fullmatch(name.strip(" \t")):
            return False
        if not _BAGGAGE_VALUE.fullmatch(value.strip(" \t")):
            return False
    return True
