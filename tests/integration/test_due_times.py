"""What waits for its time is taken up at its time, however seldom anybody looks by himself."""

import pytest

from infra.database import Database
from schema.outcome import Failed, Outcome, Succeeded
from schema.statements.claim import next_ready
from tests.deliveries import Delivery
from tests.platform import Platform, Recorder

NEVER_SECONDS = 3_600


@pytest.fixture
def sleepy(delivery: Delivery) -> Delivery:
    """Delivery in which nobody looks for work unless told, or because it knows when to."""
    delivery.settings = delivery.settings.model_copy(
        update={
            "poll_floor_seconds": NEVER_SECONDS,
            "maintenance_interval_seconds": NEVER_SECONDS,
        }
    )
    return delivery


async def test_what_is_ready_does_not_hide_when_the_next_retry_is_due(
    platform: Platform, database: Database
) -> None:
    """Somebody may hold the row of what is ready, for as long as they like."""
    in_an_hour = (await platform.rows("SELECT now() + interval '1 hour' AS at"))[0].at
    await platform.submit(1)
    await platform.submit(1, scheduled_for=in_an_hour)
    dues = sorted(row.seconds for row in await database.fetch(next_ready()))
    assert dues[0] == 0
    assert 3_000 < dues[1] <= 3_600


async def test_a_retry_runs_when_it_is_due_and_not_when_somebody_happens_to_look(
    sleepy: Delivery, platform: Platform
) -> None:
    def say(_claim: object, _input: object) -> Outcome:
        if len(recorder.ran) < 2:
            return Failed("Busy", "come back in a moment", retry_after_seconds=0.3)
        return Succeeded()

    recorder = Recorder(say)
    async with sleepy.dispatching(), sleepy.consuming(recorder):
        job_id = await platform.submit(2, max_attempts=5)
        sleepy.listener.wake()
        assert (await platform.until(job_id, "COMPLETED")).succeeded == 2
    assert len(recorder.ran) >= 4
