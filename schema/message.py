"""Version 1 of the message that travels through SQS: it points at one outbox entry.

Body: ASCII JSON ``{"v":1,"entry":<id>,"job":"<uuid>","kind":"export"}``. The correlation id
and the W3C trace context travel as message attributes, so that a relay can drop the trace
without touching the body. Readers ignore unknown fields and refuse unknown versions.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from schema.errors import Undecodable

if TYPE_CHECKING:
    from collections.abc import Mapping

VERSION = 1
ATTRIBUTE_NAMES = ("correlation_id", "traceparent", "tracestate", "baggage")
_MAX_ENTRY_ID = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Trace:
    """The correlation id of a job and the trace context in which it was submitted."""

    correlation_id: str
    traceparent: str | None = None
    tracestate: str | None = None
    baggage: str | None = None

    def attributes(self) -> dict[str, str]:
        """Return the attributes that are set, the one to keep longest first."""
        pairs = ((name, getattr(self, name)) for name in ATTRIBUTE_NAMES)
        return {name: value for name, value in pairs if value}


@dataclass(frozen=True, slots=True)
class Message:
    """A pointer at one outbox entry; it carries no state."""

    entry_id: int
    job_id: UUID
    kind: str
    trace: Trace

    def body(self) -> str:
        """Serialise to the ASCII JSON that is sent."""
        return json.dumps(
            {"v": VERSION, "entry": self.entry_id, "job": str(self.job_id), "kind": self.kind},
            separators=(",", ":"),
        )


def decode(body: str, attributes: Mapping[str, str]) -> Message:
    """Read a message; raise ``Undecodable``, saying what is wrong, for anything foreign."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Undecodable(f"body is not JSON: {type(error).__name__}") from error
    if not isinstance(document, dict):
        raise Undecodable(f"body is a JSON {type(document).__name__}, not an object")
    if "v" not in document:
        raise Undecodable("body has no version field `v`: not a message of this system")
    version, entry_id, kind = document["v"], document.get("entry"), document.get("kind")
    if version != VERSION or isinstance(version, bool):
        # A text may hold what neither a log nor a database takes: in ASCII both do.
        raise Undecodable(f"message version {ascii(version)[:20]} is unknown; this reader knows 1")
    if type(entry_id) is not int or not 0 < entry_id <= _MAX_ENTRY_ID:
        raise Undecodable("field `entry` is not a positive 64-bit integer")
    if not isinstance(kind, str) or not kind:
        raise Undecodable("field `kind` is not a non-empty string")
    try:
        job_id = UUID(document["job"])
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise Undecodable("field `job` is not a UUID") from error
    trace = Trace(
        correlation_id=attributes.get("correlation_id") or str(job_id),
        traceparent=attributes.get("traceparent"),
        tracestate=attributes.get("tracestate"),
        baggage=attributes.get("baggage"),
    )
    return Message(entry_id=entry_id, job_id=job_id, kind=kind, trace=trace)
