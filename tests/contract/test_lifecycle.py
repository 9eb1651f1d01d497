"""The one table of states: what code says and what the database enforces are the same."""

import re

import pytest
from sqlalchemy import text

from infra.database import Database
from schema.lifecycle import (
    INPUT_MOVES,
    JOB_MOVES,
    STORED_INPUT_STATUSES,
    TERMINAL_INPUT_STATUSES,
    TERMINAL_JOB_STATUSES,
    UNFINISHED_INPUT_STATUSES,
    EntryState,
    EntryType,
    InputStatus,
    JobStatus,
    input_may_move,
    job_may_move,
)

LIST = re.compile(r"'\{([A-Za-z_,]+)\}'::text\[\]")


async def names_in(database: Database, constraint: str) -> set[str]:
    rows = await database.fetch(
        text(
            "SELECT pg_get_constraintdef(oid) AS definition FROM pg_constraint"
            " WHERE conname = :name"
        ).bindparams(name=constraint)
    )
    (names,) = LIST.findall(rows[0].definition)
    return set(names.split(","))


@pytest.mark.parametrize(
    ("constraint", "states"),
    [
        ("job_status", set(JobStatus)),
        ("input_status", set(STORED_INPUT_STATUSES)),
        ("outbox_state", set(EntryState)),
        ("outbox_type", set(EntryType)),
        ("input_unfinished_is_named", set(UNFINISHED_INPUT_STATUSES & STORED_INPUT_STATUSES)),
        ("job_end_is_dated", set(TERMINAL_JOB_STATUSES)),
    ],
)
async def test_the_checks_of_the_database_name_the_states_of_the_code(
    database: Database, constraint: str, states: set[str]
) -> None:
    assert await names_in(database, constraint) == {str(state) for state in states}


def test_every_state_has_its_moves_and_leads_nowhere_unknown() -> None:
    assert set(INPUT_MOVES) == set(InputStatus)
    assert set(JOB_MOVES) == set(JobStatus)


def test_terminal_inputs_come_back_only_as_pending_and_done_ones_never() -> None:
    for status in TERMINAL_INPUT_STATUSES:
        assert INPUT_MOVES[status] <= {InputStatus.PENDING}
    assert not INPUT_MOVES[InputStatus.SUCCEEDED] | INPUT_MOVES[InputStatus.SKIPPED]


def test_terminal_jobs_come_back_only_as_running() -> None:
    for status in TERMINAL_JOB_STATUSES:
        assert JOB_MOVES[status] == {JobStatus.RUNNING}


def test_every_unfinished_input_can_be_cancelled_and_can_expire() -> None:
    for status in UNFINISHED_INPUT_STATUSES:
        assert input_may_move(status, InputStatus.CANCELLED)
        assert input_may_move(status, InputStatus.EXPIRED)


def test_a_job_is_paused_and_resumed_but_never_resumed_into_its_end() -> None:
    assert job_may_move(JobStatus.RUNNING, JobStatus.PAUSED)
    assert job_may_move(JobStatus.PAUSED, JobStatus.RUNNING)
    assert not job_may_move(JobStatus.PAUSED, JobStatus.COMPLETED)
