"""A story costs its own owner: few are read at once, and a page looks at so much and no more."""

import asyncio

import asyncpg

from tests.integration.api.conftest import Api, notes
from tests.integration.api.working import Work, submit
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
