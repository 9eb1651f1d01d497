"""What travels over HTTP about control, redrive, dead letters, histories and parked work."""

# ruff: noqa: N815 - the contract spells its names in camelCase

from __future__ import annotations

import datetime as dt  # noqa: TC003 - pydantic reads it
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from api.models import EXAMPLE_JOB, InputError, Request, Time
from api.queries import ERROR_CLASS
from infra.redrive_choice import LARGEST_CHOICE
from schema.lifecycle import InputStatus, JobStatus  # noqa: TC001 - pydantic reads them

Redrivable = Literal["DLQ", "NOT_FOUND", "CANCELLED", "EXPIRED"]
Ordinal = Annotated[int, Field(ge=0, le=2**31 - 1)]
_NEXT = "Pass it as ``after``; null at the end"
_FINGERPRINT = "3f2a9c01d4e5b677"


class Nothing(Request):
    """A request that says all by its address: no body, or an empty object."""


class Moved(BaseModel):
    """Where the job stands now, and where it stood."""

    jobId: str = Field(examples=[EXAMPLE_JOB])
    status: JobStatus
    previousStatus: JobStatus


class ReprocessRequest(Request):
    """Which inputs of a job to take back into work."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"statuses": ["DLQ"]}]})

    statuses: Annotated[list[Redrivable], Field(min_length=1, max_length=4)] = Field(
        default=["DLQ", "NOT_FOUND"], description="Inputs of these states"
    )
    ordinals: Annotated[list[Ordinal], Field(min_length=1, max_length=LARGEST_CHOICE)] | None = (
        Field(default=None, description="Only these of them")
    )
    dryRun: bool = Field(default=False, description="Only say how many would match")


class LetterRequest(Request):
    """Which dead letters to take back into work: at least one filter, or ``all``."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"fingerprint": _FINGERPRINT, "dryRun": True}]}
    )
    FILTERS: ClassVar = (
        "kind", "jobId", "fingerprint", "errorClass", "diedFrom", "diedTo", "owner"
    )  # fmt: skip

    kind: str | None = Field(default=None, pattern="^[a-z][a-z0-9_-]{0,63}$")
    jobId: str | None = Field(default=None, pattern="^J[0-9]{8}_[0-9]{6,19}$")
    fingerprint: str | None = Field(default=None, pattern="^[0-9a-f]{16}$")
    errorClass: str | None = Field(
        default=None,
        pattern=f"^{ERROR_CLASS}$",
        description="The type of the error",
    )
    diedFrom: Time | None = Field(default=None, description="Not before this time")
    diedTo: Time | None = Field(default=None, description="Before this time")
    owner: str | None = Field(
        default=None, pattern="^[A-Za-z0-9._-]{1,64}$", description="Admin keys only"
    )
    all: bool = Field(default=False, description="All that the key may see; excludes filters")
    dryRun: bool = Field(default=False, description="Only say how many would match")


class ParkedRequest(Request):
    """Which parked entries to make due again: at least one filter, or ``all``."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"reason": "InvalidParameterValue", "dryRun": True}]}
    )
    FILTERS: ClassVar = ("entryType", "kind", "jobId", "reason")

    entryType: Literal["inputs", "event"] | None = None
    kind: str | None = Field(default=None, pattern="^[a-z][a-z0-9_-]{0,63}$")
    jobId: str | None = Field(default=None, pattern="^J[0-9]{8}_[0-9]{6,19}$")
    reason: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(
        default=None, description="What the reason contains"
    )
    all: bool = Field(default=False, description="All of them; excludes filters")
    dryRun: bool = Field(default=False, description="Only say how many would match")


class DryRun(BaseModel):
    """How many inputs would go back into work now."""

    dryRun: Literal[True]
    jobId: str | None
    matched: int = Field(description="At most 1,000,000 are counted")


class SelfLink(BaseModel):
    """Where to ask again."""

    self: str


class RedriveAccepted(BaseModel):
    """The redrive is stored, and its first inputs are in work."""

    redriveId: str
    jobId: str | None = Field(description="Null when it goes over the DLQ of several jobs")
    matched: int = Field(description="How many matched when it was asked for")
    redriven: int = Field(description="How many are back in work by now")
    status: Literal["RUNNING", "DONE", "STOPPED"]
    stoppedReason: str | None
    links: SelfLink


class Redrive(BaseModel):
    """A redrive, and how far it has come."""

    redriveId: str
    status: Literal["RUNNING", "DONE", "STOPPED"]
    jobId: str | None
    owner: str | None = Field(description="Whose inputs; null: those of all owners")
    requestedBy: str
    requestedAt: dt.datetime
    filter: dict[str, Any] = Field(description="What was asked for")
    matched: int = Field(description="How many were found so far")
    redriven: int = Field(description="How many of them went back into work")
    stoppedReason: str | None
    finishedAt: dt.datetime | None
    links: SelfLink


class DeadLetterLinks(BaseModel):
    """Where to read its history, and where to POST to have it tried again."""

    input: str
    reprocess: str


class DeadLetter(BaseModel):
    """An input that gave up."""

    jobId: str = Field(examples=[EXAMPLE_JOB])
    ordinal: int
    owner: str
    kind: str
    input: JsonValue
    generation: int = Field(description="How often it was redriven before")
    attempts: int
    maxAttempts: int
    worker: str
    error: InputError
    fingerprint: str = Field(description="Equal for equal causes", examples=[_FINGERPRINT])
    diedAt: dt.datetime
    correlationId: str
    links: DeadLetterLinks


class DeadLetterPage(BaseModel):
    """A page of dead letters, newest first."""

    items: list[DeadLetter]
    next: str | None = Field(description=_NEXT)


class Cause(BaseModel):
    """What dead letters have in common."""

    fingerprint: str = Field(examples=[_FINGERPRINT])
    kind: str
    error: InputError = Field(description="That of one of them")
    count: int
    jobs: int
    firstDiedAt: dt.datetime
    lastDiedAt: dt.datetime


class CausePage(BaseModel):
    """The commonest causes among the newest 10,000 letters that match, commonest first."""

    items: list[Cause]


class Attempt(BaseModel):
    """One attempt that ended."""

    generation: int
    number: int
    outcome: Literal["SUCCEEDED", "SKIPPED", "RETRY_WAIT", "WORKER_LOST", "DLQ", "NOT_FOUND"] = (
        Field(description="WORKER_LOST: nobody said what came of it")
    )
    worker: str | None = Field(description="Null after a success, of which only the result is kept")
    error: InputError | None
    startedAt: dt.datetime | None = Field(description="Null if it was never timed")
    endedAt: dt.datetime
    elapsedMs: int | None


class NextStep(BaseModel):
    """What happens next to an input; members that do not apply are absent."""

    action: Literal["running", "retry", "queued", "held", "lapsed", "parked", "ending"]
    at: dt.datetime | None = Field(default=None, description="Not before then")
    worker: str | None = None
    leaseUntil: dt.datetime | None = None
    because: str | None = None


class HowToRedrive(BaseModel):
    """The request that takes an input back into work."""

    method: Literal["POST"]
    href: str
    body: dict[str, JsonValue]


class InputHistory(BaseModel):
    """One input, and its whole history."""

    jobId: str = Field(examples=[EXAMPLE_JOB])
    jobStatus: JobStatus
    ordinal: int
    owner: str
    kind: str
    correlationId: str
    status: InputStatus
    input: JsonValue
    s3Path: str | None
    reused: bool | None
    result: JsonValue
    generation: int = Field(description="How often it was redriven")
    attempts: int = Field(description="Attempts of this generation that ended")
    maxAttempts: int
    error: InputError | None
    reason: str | None = Field(description="Why it was skipped, if it was")
    fingerprint: str | None = Field(description="While it is in the DLQ")
    diedAt: dt.datetime | None
    settledAt: dt.datetime | None = Field(description="Null until it is final")
    history: list[Attempt] = Field(description="The oldest first, at most 1,000")
    next: NextStep | None = Field(description="Null: it is final")
    redrive: HowToRedrive | None = Field(description="How a final input is tried again, if it may")


class ParkedMessage(BaseModel):
    """A message that the queue gave up on."""

    type: Literal["message"]
    id: int
    isOpen: bool
    queue: str
    messageId: str
    reason: str
    body: str
    attributes: JsonValue
    entryId: int | None
    receiveCount: int | None
    parkedAt: dt.datetime
    resolution: Literal["requeued", "in hand", "settled", "dismissed"] | None
    resolvedAt: dt.datetime | None


class ParkedEntry(BaseModel):
    """An outbox entry that could not be sent."""

    type: Literal["entry"]
    id: int
    isOpen: Literal[True]
    entryType: Literal["inputs", "event"]
    jobId: str | None
    kind: str
    firstOrdinal: int | None
    lastOrdinal: int | None
    unfinished: int | None
    reason: str
    relayAttempts: int
    createdAt: dt.datetime
    correlationId: str


class ParkedPage(BaseModel):
    """Open messages, then entries, then messages that are resolved; the oldest first in each."""

    items: list[ParkedMessage | ParkedEntry]
    next: str | None = Field(description=_NEXT)


class MessageResolved(BaseModel):
    """What came of a parked message."""

    id: int
    resolution: Literal["requeued", "in hand", "settled", "dismissed"]


class EntriesCounted(BaseModel):
    """How many entries would be made due again."""

    dryRun: Literal[True]
    matched: int = Field(description="At most 1,000,000 are counted")


class EntriesReleased(BaseModel):
    """How many entries are due again, or held while their job is not active."""

    released: int
    remaining: int = Field(
        description="How many match still: ask again. At most 1,000,000 are counted"
    )


class EntryReleased(BaseModel):
    """Where a parked entry stands now: due, or held while its job is not active."""

    id: int
    state: Literal["PENDING", "HELD"]
