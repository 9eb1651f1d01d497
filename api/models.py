"""What travels over HTTP, as models: requests are validated by them, all are documented by them."""

# ruff: noqa: N815 - the contract spells its names in camelCase

from __future__ import annotations

import datetime as dt
import re
from fractions import Fraction
from math import floor
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue
from pydantic_core import PydanticCustomError

from schema.lifecycle import InputStatus, JobStatus  # noqa: TC001 - pydantic reads them

_RFC_3339 = re.compile(
    r"\d{4}-\d{2}-\d{2}[Tt]\d{2}:\d{2}:\d{2}(?:\.\d{1,9})?(?:[Zz]|[+-]\d{2}:\d{2})"
)


# Postgres reckons with these; the very last times would be its infinities.
_EARLIEST, _LATEST = dt.datetime(1900, 1, 1, tzinfo=dt.UTC), dt.datetime(9000, 1, 1, tzinfo=dt.UTC)


def read_time(value: object) -> dt.datetime:
    """Read an RFC 3339 time with its offset, from 1900 to 8999; give it in UTC."""
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value
    if not isinstance(value, str) or not _RFC_3339.fullmatch(value) or not value.isascii():
        raise PydanticCustomError(
            "rfc_3339", "must be an RFC 3339 time with an offset, such as 2026-01-10T08:30:00Z"
        )
    try:
        time = dt.datetime.fromisoformat(value.upper()).astimezone(dt.UTC)
    except (ValueError, OverflowError):
        raise PydanticCustomError("rfc_3339", "is no time of the calendar") from None
    if not _EARLIEST <= time < _LATEST:
        raise PydanticCustomError("rfc_3339", "must lie in the years 1900 to 8999")
    return time


Time = Annotated[dt.datetime, BeforeValidator(read_time, json_schema_input_type=str)]
EXAMPLE_JOB = "J20260110_000777"


class Request(BaseModel):
    """Base of what clients send: what is unknown is refused, and nothing is coerced."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True)


class Policy(Request):
    """How a job deals with failure."""

    maxAttempts: Annotated[int, Field(ge=1, le=100)] | None = Field(
        default=None, description="Attempts per input; default: the kind's own"
    )
    failFast: bool = Field(default=False, description="Whether an input that gives up ends the job")
    toleratedFailures: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = Field(
        default=None, description="How many may give up before failFast ends the job; default: 0"
    )
    toleratedFailureShare: Annotated[float, Field(ge=0, le=1)] | None = Field(
        default=None, description="The same as a share of all inputs, rounded down"
    )

    def tolerated(self, total: int) -> int:
        """Give how many of ``total`` inputs may give up."""
        if self.toleratedFailureShare is not None:
            # As it was written: 0.29 of 100 are 29, which floats make 28.
            return floor(Fraction(str(self.toleratedFailureShare)) * total)
        return self.toleratedFailures or 0


class JobPolicy(BaseModel):
    """The policy that a job runs under."""

    maxAttempts: int
    failFast: bool
    toleratedFailures: int


class JobFields(Request):
    """Everything of a submission but its inputs."""

    kind: str = Field(default="export", description="What is done with each input")
    priority: int = Field(default=5, ge=0, le=9, description="9 is the owner's most urgent")
    metadata: dict[str, JsonValue] = Field(
        default_factory=dict, description="Yours: kept and returned, at most 16 KiB and 8 levels"
    )
    options: dict[str, JsonValue] = Field(
        default_factory=dict, description="The options of the kind, for the whole job"
    )
    policy: Policy = Field(default_factory=Policy)
    scheduledFor: Time | None = Field(default=None, description="Do not begin earlier")
    expiresAt: Time | None = Field(
        default=None, description="What is unfinished by then becomes EXPIRED; what runs is stopped"
    )


class JobAccepted(BaseModel):
    """The job is stored; nothing can lose it now."""

    jobId: str = Field(examples=[EXAMPLE_JOB])
    status: Literal["SUBMITTED"] = Field(examples=["SUBMITTED"])


class InputError(BaseModel):
    """Why an input did not succeed (or not yet)."""

    type: str | None = Field(examples=["NotFound"])
    message: str


class DataContent(BaseModel):
    """One input of the job: its own fields, and where its file is.

    An input without fields of its own, or with one named ``input``, ``s3Path``, ``status``,
    ``error`` or ``reason``, stands whole under ``input``.
    """

    model_config = ConfigDict(extra="allow")

    s3Path: str | None = Field(
        description="Null until there",
        examples=["s3://bucket/exports/2026/01/10/J20260110_000777/ABC_20240202_CLS.csv"],
    )
    status: InputStatus | None = Field(default=None, description="Absent once SUCCEEDED")
    error: InputError | None = Field(default=None, description="Absent where there is none")
    reason: str | None = Field(default=None, description="Why it was skipped, if it was")


class DataContentOmitted(BaseModel):
    """Why ``dataContent`` is null, and where to read it page by page."""

    reason: str
    href: str


class Counts(BaseModel):
    """How many inputs stand where; they add up to ``total``."""

    pending: int = Field(description="Waiting, for a first or for another attempt")
    running: int
    succeeded: int
    skipped: int
    notFound: int
    dlq: int
    cancelled: int
    expired: int


class Links(BaseModel):
    """Where to go from here."""

    self: str
    inputs: str


class _JobHead(BaseModel):
    jobId: str = Field(examples=[EXAMPLE_JOB])
    status: JobStatus


class Job(_JobHead):
    """A job, and where each of its inputs stands."""

    total: int
    pending: int
    running: int
    done: int = Field(description="Succeeded or skipped")
    failed: int = Field(description="Gave up (DLQ) or not found")
    filesGenerated: int
    filesReused: int
    errorMessage: str | None
    dataContent: list[DataContent] | None
    dataContentOmitted: DataContentOmitted | None = None
    kind: str
    owner: str
    priority: int
    policy: JobPolicy
    correlationId: str
    requestedAt: dt.datetime
    scheduledFor: dt.datetime | None
    expiresAt: dt.datetime | None
    startedAt: dt.datetime | None
    finishedAt: dt.datetime | None
    metadata: dict[str, Any]
    counts: Counts
    links: Links


class JobSummary(_JobHead):
    """A job as lists show it."""

    kind: str
    owner: str
    priority: int
    total: int
    unfinished: int
    done: int
    failed: int
    filesGenerated: int
    filesReused: int
    errorMessage: str | None
    correlationId: str
    requestedAt: dt.datetime
    startedAt: dt.datetime | None
    finishedAt: dt.datetime | None
    links: Links


class JobPage(BaseModel):
    """A page of jobs, newest first; it may hold fewer than ``pageSize`` while ``next`` is set."""

    items: list[JobSummary]
    next: str | None = Field(description="Pass it as ``after``; null at the end")


class Input(BaseModel):
    """One input of a job."""

    ordinal: int
    status: InputStatus
    input: JsonValue = Field(description="The input as it was accepted")
    s3Path: str | None
    reused: bool | None
    result: JsonValue
    attempts: int
    error: InputError | None
    reason: str | None = Field(description="Why it was skipped, if it was")
    elapsedMs: int | None
    settledAt: dt.datetime | None = Field(description="Null until it is final")
    availableAt: dt.datetime | None = Field(description="When an unfinished input may run")


class InputPage(BaseModel):
    """A page of inputs by ordinal; it may hold fewer than ``pageSize`` while ``next`` is set."""

    items: list[Input]
    next: str | None = Field(description="Pass it as ``after``; null at the end")


class ErrorItem(BaseModel):
    """One thing that is wrong, and where."""

    detail: str
    pointer: str | None = Field(default=None, examples=["/inputs/3/effectiveDate"])
    parameter: str | None = None
    header: str | None = None
    line: int | None = Field(
        default=None, description="Of a body of lines: the line of ``pointer``, from 1"
    )


class ProblemDocument(BaseModel):
    """An RFC 9457 problem."""

    type: str = Field(examples=["urn:haulage:problem:invalid-request"])
    title: str
    status: int
    detail: str
    correlationId: str
    errors: list[ErrorItem] | None = Field(default=None, description="At most 100")
    errorCount: int | None = Field(
        default=None, description="How many there are in all; at least so many from 1,000 on"
    )
