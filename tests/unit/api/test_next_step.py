import datetime as dt
from dataclasses import replace
from itertools import product

import pytest

from api.next_step import Standing, next_step
from schema.lifecycle import (
    TERMINAL_INPUT_STATUSES,
    TERMINAL_JOB_STATUSES,
    EntryState,
    InputStatus,
    JobStatus,
)

SOON = dt.datetime(2026, 1, 10, 8, 30, tzinfo=dt.UTC)
AT = "2026-01-10T08:30:00Z"


def standing(
    state: InputStatus,
    entry_state: EntryState | None = EntryState.PENDING,
    job_status: JobStatus = JobStatus.RUNNING,
) -> Standing:
    return Standing(
        state=state,
        job_status=job_status,
        entry_state=entry_state,
        available_at=SOON,
        worker="w-1",
        locked_until=SOON,
        parked_reason="too large",
    )


@pytest.mark.parametrize(
    ("state", "entry_state", "job_status", "expected"),
    [
        ("RUNNING", "CLAIMED", "RUNNING", {"action": "running", "worker": "w-1", "leaseUntil": AT}),
        ("RUNNING", "CLAIMED", "PAUSED", {"action": "running", "worker": "w-1", "leaseUntil": AT}),
        ("PENDING", "CLAIMED", "RUNNING", {"action": "lapsed", "worker": "w-1", "leaseUntil": AT}),
        ("RETRY_WAIT", "PENDING", "RUNNING", {"action": "retry", "at": AT}),
        ("RETRY_WAIT", "SENT", "RUNNING", {"action": "retry", "at": AT}),
        ("PENDING", "PENDING", "SUBMITTED", {"action": "queued", "at": AT}),
        ("PENDING", "SENT", "RUNNING", {"action": "queued", "at": AT}),
        ("PENDING", "HELD", "PAUSED", {"action": "held", "because": "job is PAUSED"}),
        ("RETRY_WAIT", "SENT", "PAUSED", {"action": "held", "because": "job is PAUSED"}),
        ("PENDING", "HELD", "CANCELLED", {"action": "ending", "because": "job is CANCELLED"}),
        ("RETRY_WAIT", "SENT", "EXPIRED", {"action": "ending", "because": "job is EXPIRED"}),
        ("PENDING", "PARKED", "RUNNING", {"action": "parked", "because": "too large"}),
    ],
)
def test_what_happens_next_follows_from_the_entry_and_the_job(
    state: str, entry_state: str, job_status: str, expected: dict[str, str]
) -> None:
    found = standing(InputStatus(state), EntryState(entry_state), JobStatus(job_status))
    assert next_step(found) == expected


def test_an_input_that_nobody_works_on_says_what_is_known_of_that() -> None:
    waits = replace(standing(InputStatus.PENDING), kind="order", kind_is_idle=True)
    assert next_step(waits) == {
        "action": "queued",
        "at": AT,
        "because": "no consumer works on kind 'order' now, and none is known to have",
    }
    nobody = "no consumer works on kind 'order' now"
    again = replace(waits, state=InputStatus.RETRY_WAIT, kind_ran_at=SOON)
    assert next_step(again) == {
        "action": "retry",
        "at": AT,
        "because": f"{nobody}; one last did at {AT}, as far as is known",
    }
    paused = replace(waits, job_status=JobStatus.PAUSED)
    assert next_step(paused) == {"action": "held", "because": "job is PAUSED"}


def test_nothing_happens_to_a_final_input_and_something_to_every_other() -> None:
    for state, entry, job in product(InputStatus, [*EntryState, None], JobStatus):
        step = next_step(standing(state, entry, job))
        assert (step is None) == (state in TERMINAL_INPUT_STATUSES)
        if step is not None and job in TERMINAL_JOB_STATUSES:
            assert step["action"] in {"running", "ending"}
