"""Kinds without isolation: bounded in time, and left behind when they do not listen."""

import asyncio
from pathlib import Path
from typing import Any
from uuid import UUID

from structlog.testing import capture_logs

from schema.outcome import Outcome, Succeeded
from tests import poison
from tests.deliveries import Delivery
from tests.integration.isolation.workshops import consuming, outcomes
from tests.platform import Platform, Recorder, eventually


async def test_a_run_past_its_time_limit_is_cancelled_and_tried_again(
    delivery: Delivery, platform: Platform, tmp_path: Path
) -> None:
    bodies = [{"gate": str(tmp_path / "never")}, {}]
    job_id = await platform.submit(bodies, kind="limited", max_attempts=2)
    async with consuming(delivery, poison.LIMITED):
        await platform.until(job_id, "FAILED")
    assert await outcomes(platform, job_id) == {
        0: ("DLQ", 2, "TimeLimit"),
        1: ("SUCCEEDED", 1, None),
    }


async def test_a_processor_that_cancels_itself_has_failed_and_is_not_run_for_ever(
    delivery: Delivery, platform: Platform
) -> None:
    job_id = await platform.submit([{"does": "cancel itself"}], kind="inside", max_attempts=2)
    async with consuming(delivery, poison.INSIDE):
        await platform.until(job_id, "FAILED")
    assert await outcomes(platform, job_id) == {0: ("DLQ", 2, "CancelledError")}


async def test_a_processor_that_swallows_its_cancellation_keeps_its_slot_but_no_one_else(
    delivery: Delivery, platform: Platform
) -> None:
    """The first takes one of two slots for good; its neighbours and the drain go on without it."""
    released = asyncio.Event()
    job_id = await platform.submit(6, chunk_size=6, kind="limited", max_attempts=1)

    async def say(ordinal: int) -> Outcome:
        while ordinal == 0 and not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue
        return Succeeded()

    runner = Recorder(lambda _, input_: say(input_.ordinal))
    kinds = {"limited": poison.LIMITED}
    delivery.kinds = kinds
    with capture_logs() as logs:
        changes: dict[str, Any] = {"concurrency": 2, "cancel_grace_seconds": 0.1}
        async with delivery.consuming({"limited": runner}, **changes):
            await platform.until(job_id, "FAILED")
    (abandoned,) = (line for line in logs if line["event"] == "processor.abandoned")
    assert abandoned["kind"] == "limited"
    assert abandoned["job"] == (await platform.job(job_id)).key
    assert (abandoned["slots_withheld"], abandoned["slots"]) == (1, 2)
    ended = await outcomes(platform, job_id)
    assert ended.pop(0) == ("DLQ", 1, "TimeLimit")
    assert set(ended.values()) == {("SUCCEEDED", 1, None)}
    released.set()

    async def ran() -> bool:
        return (job_id, 0) in runner.ran

    await eventually(ran)


async def test_a_drain_ends_though_every_slot_is_held_by_who_does_not_listen(
    delivery: Delivery, platform: Platform
) -> None:
    """Inputs of the same claim wait for a slot that never comes; they go back at no cost."""
    released = asyncio.Event()
    job_id = await platform.submit(3, chunk_size=3, kind="inside")

    async def say() -> Outcome:
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue
        return Succeeded()

    runner = Recorder(lambda _, __: say())
    delivery.kinds = {"inside": poison.INSIDE}
    changes: dict[str, Any] = {"concurrency": 1, "cancel_grace_seconds": 0.1, "drain_seconds": 0}
    async with delivery.consuming({"inside": runner}, **changes):
        await runner.started.wait()
    (entry,) = await platform.entries(job_id)
    assert entry.state == "PENDING"
    assert await _attempts(platform, job_id) == [0, 0, 0]
    released.set()


async def test_an_input_that_lasts_many_leases_runs_once(
    delivery: Delivery, platform: Platform
) -> None:
    over = asyncio.Event()
    job_id = await platform.submit(1)

    async def say() -> Outcome:
        await over.wait()
        return Succeeded()

    runner = Recorder(lambda _, __: say())
    delivery.settings = delivery.settings.model_copy(update={"lease_seconds": 2})
    async with delivery.dispatching(), delivery.consuming(runner):
        await runner.started.wait()
        await _lasts(platform, job_id, seconds=7)
        over.set()
        await platform.until(job_id, "COMPLETED")
    assert runner.ran == [(job_id, 0)]
    assert await outcomes(platform, job_id) == {0: ("SUCCEEDED", 1, None)}


async def test_an_isolated_input_that_lasts_many_leases_runs_once(
    delivery: Delivery, platform: Platform, tmp_path: Path
) -> None:
    began, gate = tmp_path / "began", tmp_path / "gate"
    body = {"file": str(began), "gate": str(gate)}
    job_id = await platform.submit([body], kind="unlimited")
    delivery.settings = delivery.settings.model_copy(update={"lease_seconds": 2})

    async def begun() -> bool:
        return bool(poison.marks(began))

    async with delivery.dispatching(), consuming(delivery, poison.UNLIMITED):
        await eventually(begun)
        await _lasts(platform, job_id, seconds=7)
        gate.touch()
        await platform.until(job_id, "COMPLETED")
    assert len(poison.marks(began)) == 1
    assert await outcomes(platform, job_id) == {0: ("SUCCEEDED", 1, None)}


async def _lasts(platform: Platform, job_id: UUID, *, seconds: float) -> None:
    """Wait until the lease of the job's one entry has been extended for so long."""
    (first,) = await platform.entries(job_id)

    async def extended() -> bool:
        (entry,) = await platform.entries(job_id)
        assert entry.epoch == first.epoch
        return bool((entry.locked_until - first.locked_until).total_seconds() >= seconds)

    await eventually(extended, pause_seconds=0.05)


async def _attempts(platform: Platform, job_id: UUID) -> list[int]:
    rows = await platform.rows(
        "SELECT attempts FROM input WHERE job_id = :id ORDER BY ordinal", id=job_id
    )
    return [row.attempts for row in rows]
