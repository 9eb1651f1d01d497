"""The states and the legal moves: the one table that code and database both check.

``RUNNING`` of an input is never stored: an input runs while the outbox entry that names it
holds a live lease. The stored statuses are those of ``STORED_INPUT_STATUSES``.
"""

from __future__ import annotations

from enum import StrEnum


class JobStatus(StrEnum):
    """Where a job stands."""

    SUBMITTED = "SUBMITTED"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    EXPIRED = "EXPIRED"


class InputStatus(StrEnum):
    """Where an input stands, as every reader sees it (view ``input_state``)."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    RETRY_WAIT = "RETRY_WAIT"
    SUCCEEDED = "SUCCEEDED"
    DLQ = "DLQ"
    NOT_FOUND = "NOT_FOUND"
    SKIPPED = "SKIPPED"
    CANCELLED = "CANCELLED"
    EXPIRED = "EXPIRED"


class EntryState(StrEnum):
    """Where an outbox entry stands; a settled entry is deleted."""

    PENDING = "PENDING"
    SENT = "SENT"
    CLAIMED = "CLAIMED"
    HELD = "HELD"
    PARKED = "PARKED"


class EntryType(StrEnum):
    """What an outbox entry orders: work on inputs, or an event to publish."""

    INPUTS = "inputs"
    EVENT = "event"


JOB_MOVES: dict[JobStatus, frozenset[JobStatus]] = {
    JobStatus.SUBMITTED: frozenset(
        {JobStatus.RUNNING, JobStatus.PAUSED, JobStatus.CANCELLED, JobStatus.EXPIRED}
    ),
    JobStatus.RUNNING: frozenset(
        {
            JobStatus.PAUSED,
            JobStatus.COMPLETED,
            JobStatus.FAILED,
            JobStatus.CANCELLED,
            JobStatus.EXPIRED,
        }
    ),
    JobStatus.PAUSED: frozenset({JobStatus.RUNNING, JobStatus.CANCELLED, JobStatus.EXPIRED}),
    # Terminal, except through redrive.
    JobStatus.COMPLETED: frozenset({JobStatus.RUNNING}),
    JobStatus.FAILED: frozenset({JobStatus.RUNNING}),
    JobStatus.CANCELLED: frozenset({JobStatus.RUNNING}),
    JobStatus.EXPIRED: frozenset({JobStatus.RUNNING}),
}

INPUT_MOVES: dict[InputStatus, frozenset[InputStatus]] = {
    InputStatus.PENDING: frozenset(
        {InputStatus.RUNNING, InputStatus.CANCELLED, InputStatus.EXPIRED}
    ),
    InputStatus.RUNNING: frozenset(
        {
            InputStatus.SUCCEEDED,
            InputStatus.RETRY_WAIT,
            InputStatus.DLQ,
            InputStatus.NOT_FOUND,
            InputStatus.SKIPPED,
            InputStatus.PENDING,
            InputStatus.CANCELLED,
            InputStatus.EXPIRED,
        }
    ),
    InputStatus.RETRY_WAIT: frozenset(
        {InputStatus.RUNNING, InputStatus.CANCELLED, InputStatus.EXPIRED}
    ),
    InputStatus.SUCCEEDED: frozenset(),
    InputStatus.SKIPPED: frozenset(),
    # Terminal, except through redrive.
    InputStatus.DLQ: frozenset({InputStatus.PENDING}),
    InputStatus.NOT_FOUND: frozenset({InputStatus.PENDING}),
    InputStatus.CANCELLED: frozenset({InputStatus.PENDING}),
    InputStatus.EXPIRED: frozenset({InputStatus.PENDING}),
}

UNFINISHED_INPUT_STATUSES = frozenset(
    {InputStatus.PENDING, InputStatus.RUNNING, InputStatus.RETRY_WAIT}
)
TERMINAL_INPUT_STATUSES = frozenset(InputStatus) - UNFINISHED_INPUT_STATUSES
STORED_INPUT_STATUSES = frozenset(InputStatus) - {InputStatus.RUNNING}

ACTIVE_JOB_STATUSES = frozenset({JobStatus.SUBMITTED, JobStatus.RUNNING})
TERMINAL_JOB_STATUSES = frozenset(
    {JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED, JobStatus.EXPIRED}
)


def input_may_move(current: InputStatus, target: InputStatus) -> bool:
    """Say whether the lifecycle allows an input to go from ``current`` to ``target``."""
    return target in INPUT_MOVES[current]


def job_may_move(current: JobStatus, target: JobStatus) -> bool:
    """Say whether the lifecycle allows a job to go from ``current`` to ``target``."""
    return target in JOB_MOVES[current]
