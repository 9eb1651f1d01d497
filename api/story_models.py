"""What travels over HTTP about the stories of jobs."""

# ruff: noqa: N815 - the contract spells its names in camelCase

from __future__ import annotations

import datetime as dt  # noqa: TC003 - pydantic reads it
from typing import Literal

from pydantic import BaseModel, Field

from api.models import EXAMPLE_JOB, InputError, Links
from schema.lifecycle import JobStatus  # noqa: TC001 - pydantic reads it

_NEXT = "Pass it as ``after``; null at the end"


class Step(BaseModel):
    """Something that happened, or that is to; members that do not apply are absent."""

    type: Literal[
        "job.accepted",
        "job.due",
        "job.started",
        "redrive.requested",
        "attempt.failed",
        "input.died",
        "input.settled",
        "entry.relayed",
        "entry.due",
        "lease.ends",
        "lease.lapsed",
        "entry.held",
        "entry.parked",
        "job.finished",
        "job.expires",
        "job.pruned",
    ]
    jobId: str = Field(examples=[EXAMPLE_JOB])
    at: dt.datetime | None = Field(description="Null: it is so now; since when is not kept")
    untilAt: dt.datetime | None = Field(
        default=None, description="When the last of several happened; `at` is the first"
    )
    isExpected: bool = Field(description="Whether `at` is yet to come")
    sinceMs: int | None = Field(default=None, description="Time from the step before to `at`")
    ordinal: int | None = Field(default=None, description="The input, or the lowest of several")
    lastOrdinal: int | None = Field(default=None, description="The highest of several")
    inputs: int | None = Field(default=None, description="How many inputs, or attempts, it is of")
    outcome: str | None = Field(default=None, description="The status that came of it")
    generation: int | None = None
    attempt: int | None = None
    worker: str | None = None
    error: InputError | None = None
    elapsedMs: int | None = Field(default=None, description="Run time; of several, the mean")
    nextAt: dt.datetime | None = Field(
        default=None, description="When the next attempt may begin; of several, the first"
    )
    entryId: int | None = None
    epoch: int | None = Field(default=None, description="How often the entry was claimed")
    fingerprint: str | None = None
    redriveId: str | None = None
    requestedBy: str | None = None
    because: str | None = None
    traceId: str | None = None


class TimelineLinks(Links):
    """Where to go from here."""

    input: str | None = Field(default=None, description="Of a story of one input")


class Timeline(BaseModel):
    """A page of the story of a job, or of one input of it, in order of time.

    It may hold fewer steps than ``pageSize`` while ``next`` is set: a large job is told in parts,
    one run of inputs after the other.
    """

    jobId: str = Field(examples=[EXAMPLE_JOB])
    status: JobStatus
    kind: str
    owner: str
    total: int
    ordinal: int | None = Field(description="The input that was asked for")
    correlationId: str
    traceId: str | None
    links: TimelineLinks
    items: list[Step]
    next: str | None = Field(description=_NEXT)


class Correlation(BaseModel):
    """A page of the stories of all jobs of a correlation id, the oldest job first.

    It may hold fewer steps than ``pageSize`` while ``next`` is set.
    """

    correlationId: str
    items: list[Step]
    next: str | None = Field(description=_NEXT)
