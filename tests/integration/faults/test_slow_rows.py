"""A job whose rows take Postgres too long to write: what that may not do to the others."""

from collections import Counter
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from infra.queue.protocol import Claim, ClaimedInput
from schema.outcome import Outcome
from tests.deliveries import Delivery
from tests.integration.test_held_rows import events, leasing
from tests.platform import Gated, Platform, eventually

LEASE_SECONDS = 6
# What a commit may take is 5 s where leases are that short.
SLOW = "PERFORM pg_sleep(2);"
GIVES_UP = "RAISE EXCEPTION ''it takes too long'' USING ERRCODE = ''57014'';"


class Together(Gated):
    """A runner whose inputs end at the same time: their outcomes share a commit."""

    begun = 0

    async def _wait(self, claim: Claim, input_: ClaimedInput) -> Outcome:
        self.begun += 1
        return await super()._wait(claim, input_)


async def spoil(platform: Platform, job_id: UUID, does: str) -> None:
    """Have Postgres do that whenever an input of the job is written."""
    await platform.rows(
        f"CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN {does} RETURN NEW; END'"
    )
    await platform.rows(
        "CREATE TRIGGER slow BEFORE UPDATE ON input FOR EACH ROW"
        f" WHEN (OLD.job_id = '{job_id}') EXECUTE FUNCTION slow()"
    )


async def test_an_outcome_that_takes_longer_than_a_commit_may_is_written_once_it_is_alone(
    station: Delivery, platform: Platform
) -> None:
    """And its neighbours wait for a moment: each has a commit of its own then."""
    before = [await platform.submit(1, max_attempts=1) for _ in range(4)]
    slow = await platform.submit(1, max_attempts=1)
    after = [await platform.submit(1, max_attempts=1) for _ in range(4)]
    await spoil(platform, slow, "PERFORM pg_sleep(7);")
    runner = Together()
    async with (
        station.dispatching(),
        leasing(station, 10).consuming(runner, concurrency=32),
    ):
        await eventually(lambda: runner.begun == 9)
        runner.gate.set()
        for job_id in (*before, *after, slow):
            assert (await platform.until(job_id, "COMPLETED")).succeeded == 1
    assert len(runner.ran) == 9, "each ran once"


@pytest.mark.parametrize("does", [SLOW, GIVES_UP], ids=["slow", "gives up"])
async def test_a_job_whose_rows_take_too_long_to_write_costs_the_others_nothing(
    delivery: Delivery, platform: Platform, does: str
) -> None:
    others = [await platform.submit(1, max_attempts=1) for _ in range(3)]
    slow = await platform.submit(10, chunk_size=1)
    await spoil(platform, slow, does)
    others += [await platform.submit(1, max_attempts=1) for _ in range(12)]
    runner = Together()
    with capture_logs() as lines:
        async with (
            delivery.dispatching(),
            leasing(delivery, LEASE_SECONDS).consuming(runner, concurrency=32),
        ):
            await eventually(lambda: runner.begun == 25)
            runner.gate.set()
            for job_id in others:
                assert (await platform.until(job_id, "COMPLETED")).succeeded == 1
            assert (await platform.job(slow)).status == "RUNNING"
            if does == GIVES_UP:
                await eventually(lambda: events(lines)["settle.put_aside"] == 1)
            await platform.rows("DROP TRIGGER slow ON input")
            assert (await platform.until(slow, "COMPLETED")).succeeded == 10
    ran = Counter(job_id for job_id, _ in runner.ran)
    assert [ran[job_id] for job_id in others] == [1] * 15
    charged = {row.job_id for row in await platform.rows("SELECT job_id FROM attempt")}
    assert charged <= {slow}, "its leases end while its rows are written, and written in vain"
    assert events(lines)["settle.caught_up"] == events(lines)["settle.put_aside"] <= 1
    await platform.check_consistency()
