"""One request and its answer: what the layers learn about it, for the log and for each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import Scope

    from api.auth import Caller
    from schema.message import Trace

_SCOPE_KEY = "haulage.exchange"


@dataclass(slots=True)
class Exchange:
    """What is known of a request by the time that it is logged."""

    trace: Trace
    route: str | None = None
    caller: Caller | None = None
    job: str | None = None
    inputs: int | None = None
    replayed: bool | None = None
    # What a control request found and left.
    status_before: str | None = None
    status_after: str | None = None
    redrive: str | None = None
    # The answer names this one where it is about a job of an earlier request.
    answered_correlation_id: str | None = None
    is_logged: bool = True
    request_bytes: int = 0
    response_bytes: int = 0
    status: int | None = None

    def attach(self, scope: Scope) -> None:
        """Let everything behind find it."""
        scope[_SCOPE_KEY] = self

    @property
    def known_caller(self) -> Caller:
        """Give the caller, behind a resource that asked for a key."""
        assert self.caller is not None, "the resource asked for a key"
        return self.caller

    @staticmethod
    def of(scope: Scope) -> Exchange:
        """Find the exchange of this request."""
        exchange = scope[_SCOPE_KEY]
        assert isinstance(exchange, Exchange), "the edge attached it"
        return exchange
