"""A story costs its own owner: few are read at once, and a page looks at so much and no more."""

import asyncio
from typing import Any

import asyncpg
import httpx
import pytest

from tests.integration.api.conftest import Api, notes
from tests.integration.api.working import Work, pages, submit
from tests.platform import eventually


async def test_the_stories_of_one_owner_take_no_connection_from_another(
    api: Api, work: Work, database_url: str
) -> None:
    """Thirty stories that got stuck used up the pool: no owner got an answer, nor did /readyz."""
    blocker = await asyncpg.connect(database_url)

    async def stuck() -> int:
        rows = await work.rows(
            "SELECT 1 FROM pg_locks l JOIN pg_database d ON d.oid = l.database"
            " WHERE d.datname = current_database() AND NOT l.granted"
        )
        return len(rows)

    async with (
        await api.client(owner="greedy") as greedy,
        await api.client(owner="other") as other,
        asyncio.TaskGroup() as group,
    ):
        job = await submit(greedy, notes(1), **{"X-Correlation-Id": "mine"})
        own = await submit(other, notes(1))
        async with blocker.transaction():
            await blocker.execute("LOCK TABLE attempt IN ACCESS EXCLUSIVE MODE")
            addresses = (f"/jobs/{job}/timeline", "/correlations/mine")
            stories = [
                group.create_task(greedy.get(address)) for address in addresses for _ in range(15)
            ]

            async def one_is_stuck() -> bool:
                return await stuck() == 1

            await eventually(one_is_stuck)
            for address in (f"/jobs/{own}", "/jobs", "/readyz"):
                assert (await other.get(address)).status_code == 200
            theirs = group.create_task(other.get(f"/jobs/{own}/timeline"))

            async def two_are_stuck() -> bool:
                return await stuck() == 2

            await eventually(two_are_stuck)
        answers = [await story for story in stories]
        assert (await theirs).status_code == 200
    await blocker.close()
    late = [answer for answer in answers if answer.status_code != 200]
    assert len(late) < len(answers)
    assert {(answer.status_code, answer.headers["Retry-After"]) for answer in late} <= {(503, "5")}


async def grow(work: Work, job: str, inputs: int) -> None:
    """Make a job as large as no test would submit: every input of it succeeded, one a millisecond.

    Every hundredth failed once before.
    """
    await work.rows(
        """
        WITH j AS (
            UPDATE job SET total = :inputs, succeeded = :inputs, status = 'COMPLETED',
                   started_at = requested_at, finished_at = requested_at + interval '1 minute'
            WHERE key = :job RETURNING id, requested_at),
        gone AS (DELETE FROM outbox USING j WHERE job_id = j.id),
        before AS (
            UPDATE input i SET status = 'SUCCEEDED', entry_id = NULL, attempts = 1,
                   settled_at = j.requested_at + ordinal * interval '1 ms'
            FROM j WHERE job_id = j.id),
        a AS (
            INSERT INTO attempt (job_id, ordinal, generation, attempt, status, worker, error_class,
                                 error_message, ended_at)
            SELECT j.id, n, 0, 1, 'RETRY_WAIT', 'w', 'Timeout', 'm', j.requested_at
            FROM j, generate_series(0, :inputs - 1, 100) AS n)
        INSERT INTO input (job_id, ordinal, status, attempts, settled_at, body)
        SELECT j.id, n, 'SUCCEEDED', 1, j.requested_at + n * interval '1 ms', '{"text":"x"}'
        FROM j, generate_series(1, :inputs - 1) AS n RETURNING 1 AS one
        """,
        job=job,
        inputs=inputs,
    )


def told_of(page: list[dict[str, Any]], type_: str) -> int:
    return sum(step["inputs"] for step in page if step["type"] == type_)


@pytest.mark.parametrize("page_size", [2, 500])
async def test_a_page_of_a_large_job_is_about_ten_thousand_inputs_and_none_is_left_out(
    client: httpx.AsyncClient, work: Work, page_size: int
) -> None:
    job = await submit(client, notes(1))
    await grow(work, job, 25_000)
    found = await pages(client, f"/jobs/{job}/timeline", pageSize=page_size)
    assert all(told_of(page, "input.settled") <= 10_000 for page in found)
    steps = [step for page in found for step in page]
    assert told_of(steps, "input.settled") == 25_000
    assert told_of(steps, "attempt.failed") == 250
    assert [step["type"] for step in steps if step["type"].startswith("job.")] == [
        "job.accepted",
        "job.started",
        "job.finished",
    ]
    assert (steps[0]["type"], steps[-1]["type"]) == ("job.accepted", "job.finished")
    ranges = {
        (step["ordinal"] // 10_000, step["lastOrdinal"] // 10_000)
        for step in steps
        if "lastOrdinal" in step
    }
    assert ranges == {(0, 0), (1, 1), (2, 2)}
    one = (await client.get(f"/jobs/{job}/timeline?ordinal=20000")).json()
    assert [step["type"] for step in one["items"]] == [
        "job.accepted",
        "job.started",
        "attempt.failed",
        "input.settled",
        "job.finished",
    ]


async def test_a_page_looks_at_fewer_inputs_where_each_may_fail_often(
    client: httpx.AsyncClient, work: Work
) -> None:
    body, headers = notes(1) | {"policy": {"maxAttempts": 100}}, {"X-Correlation-Id": "c"}
    large, small = [await submit(client, body, **headers) for _ in range(2)]
    await grow(work, large, 2_500)
    await grow(work, small, 600)
    found = await pages(client, f"/jobs/{large}/timeline")
    assert [told_of(page, "input.settled") for page in found] == [1_000, 1_000, 500]
    found = await pages(client, "/correlations/c")
    assert [told_of(page, "input.settled") for page in found] == [1_000, 1_000, 500, 600]


async def test_a_page_of_a_correlation_is_about_ten_thousand_inputs_however_many_jobs_have_them(
    client: httpx.AsyncClient, work: Work
) -> None:
    jobs = [await submit(client, notes(1), **{"X-Correlation-Id": "c"}) for _ in range(5)]
    for job, inputs in zip(jobs, (4_000, 5_000, 2_000, 12_000, 1_000), strict=True):
        await grow(work, job, inputs)
    found = await pages(client, "/correlations/c", pageSize=500)
    assert [told_of(page, "input.settled") for page in found] == [9_000, 2_000, 10_000, 3_000]
    finished = [step["jobId"] for page in found for step in page if step["type"] == "job.finished"]
    assert finished == jobs


async def test_a_story_goes_on_by_the_hours_that_it_began_with(
    client: httpx.AsyncClient, work: Work
) -> None:
    """A job that turned two hours old between two pages lost the inputs of the rest of an hour."""
    job = await submit(client, notes(150))
    await work.rows("UPDATE job SET started_at = now() - interval '119 minutes' RETURNING 1 AS one")
    await work.rows(
        "UPDATE input SET status = 'SUCCEEDED', entry_id = NULL, attempts = 1, settled_at ="
        " date_trunc('hour', now()) - interval '90 minutes' + ordinal * interval '30 seconds'"
        " RETURNING 1 AS one"
    )
    first = (await client.get(f"/jobs/{job}/timeline", params={"pageSize": 20})).json()
    await work.rows("UPDATE job SET started_at = now() - interval '121 minutes' RETURNING 1 AS one")
    rest = await client.get(
        f"/jobs/{job}/timeline", params={"pageSize": 500, "after": first["next"]}
    )
    assert told_of(first["items"] + rest.json()["items"], "input.settled") == 150
