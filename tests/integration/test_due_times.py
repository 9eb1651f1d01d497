"""What waits for its time is taken up at its time, however seldom anybody looks by himself."""

import pytest

from schema.outcome import Failed, Outcome, Succeeded
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
