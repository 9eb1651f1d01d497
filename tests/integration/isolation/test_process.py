"""What becomes of real consumer processes, and of their children, when something goes wrong."""

import asyncio
import signal
from pathlib import Path
from uuid import UUID

import psutil
import pytest

from infra.process import EXIT_BLOCKED, EXIT_LEFT_BEHIND
from tests import poison
from tests.deliveries import Delivery
from tests.integration.isolation.consumers import consumer_process, has_begun, is_gone
from tests.integration.isolation.workshops import outcomes
from tests.platform import Platform, eventually


@pytest.mark.parametrize("does", ["swallow", "block", "block in C"])
async def test_a_child_does_not_outlive_a_consumer_that_is_killed(
    platform: Platform, database_url: str, tmp_path: Path, does: str
) -> None:
    began = tmp_path / "began"
    await platform.submit([{"does": does, "file": str(began)}], kind="unlimited")
    async with consumer_process(database_url, tmp_path / "log") as consumer:
        _, _, child = await has_begun(consumer, began)
        assert psutil.Process(child).ppid() == consumer.pid
        consumer.send(signal.SIGKILL)
        await consumer.exit_code()
        await is_gone(child)


async def test_a_drain_kills_an_isolated_input_and_gives_it_back_at_no_cost(
    platform: Platform, database_url: str, tmp_path: Path
) -> None:
    began = tmp_path / "began"
    body = {"does": "block", "file": str(began)}
    job_id = await platform.submit([body], kind="unlimited")
    async with consumer_process(database_url, tmp_path / "log", drain_seconds=0) as consumer:
        _, _, child = await has_begun(consumer, began)
        consumer.send(signal.SIGTERM)
        assert await consumer.exit_code() == 0
        await is_gone(child)
    (entry,) = await platform.entries(job_id)
    assert entry.state == "PENDING"
    assert await outcomes(platform, job_id) == {0: ("PENDING", 0, None)}


async def test_a_processor_that_swallows_its_cancellation_does_not_hold_up_the_drain(
    platform: Platform, database_url: str, tmp_path: Path
) -> None:
    began = tmp_path / "began"
    bodies = [{}, {"does": "swallow", "file": str(began)}, {}]
    job_id = await platform.submit(bodies, kind="inside")
    settings = {"drain_seconds": 0.5, "cancel_grace_seconds": 0.5}
    async with consumer_process(database_url, tmp_path / "log", **settings) as consumer:
        await has_begun(consumer, began)
        consumer.send(signal.SIGTERM)
        assert await consumer.exit_code() == EXIT_LEFT_BEHIND
        (abandoned,) = consumer.lines("processor.abandoned")
        assert (abandoned["kind"], abandoned["ordinals"]) == ("inside", [1])
        assert len(consumer.lines("process.left_tasks_behind")) == 1
    ended = await outcomes(platform, job_id)
    assert ended == {
        0: ("SUCCEEDED", 1, None),
        1: ("PENDING", 0, None),
        2: ("SUCCEEDED", 1, None),
    }


async def test_a_second_signal_ends_a_process_whose_processor_swallows_it(
    platform: Platform, database_url: str, tmp_path: Path
) -> None:
    began = tmp_path / "began"
    await platform.submit([{"does": "swallow", "file": str(began)}], kind="inside")
    async with consumer_process(database_url, tmp_path / "log", drain_seconds=600) as consumer:
        await has_begun(consumer, began)
        consumer.send(signal.SIGTERM)
        while not consumer.lines("process.stopping"):
            await asyncio.sleep(0.01)
        consumer.send(signal.SIGTERM)
        assert await consumer.exit_code() == 1, "the drain was cut short: nothing blocked"


async def test_a_blocked_loop_ends_its_process_and_neighbours_survive(
    delivery: Delivery, platform: Platform, database_url: str, tmp_path: Path
) -> None:
    """The chunk is charged once for its killer, which then has an entry and a death of its own."""
    began, gate = tmp_path / "began", tmp_path / "gate"
    gate.touch()
    killer = {"does": "block", "file": str(began), "gate": str(gate)}
    job_id = await platform.submit([{}, killer, {}, {}], chunk_size=4, kind="inside")
    settings = {"lease_seconds": 1, "resend_after_seconds": 60}
    delivery.kinds = {"inside": poison.INSIDE}
    async with delivery.dispatching():
        await _ends_blocked(database_url, tmp_path / "together", settings)
        gate.unlink()
        async with consumer_process(database_url, tmp_path / "alone", **settings) as consumer:
            await _until_succeeded(platform, job_id, inputs=3)
            gate.touch()
            assert await consumer.exit_code() == EXIT_BLOCKED
        await _ends_blocked(database_url, tmp_path / "again", settings)
        await platform.until(job_id, "FAILED", timeout_seconds=60)
    assert [ordinal for ordinal, _, _ in poison.marks(began)] == [1, 1, 1]
    ended = await outcomes(platform, job_id)
    assert ended.pop(1) == ("DLQ", 3, "WorkerLost")
    assert {status for status, _, _ in ended.values()} == {"SUCCEEDED"}
    assert max(attempts for _, attempts, _ in ended.values()) <= 2
    await platform.check_consistency()


async def _ends_blocked(database_url: str, log: Path, settings: dict[str, int]) -> None:
    async with consumer_process(database_url, log, **settings) as consumer:
        assert await consumer.exit_code() == EXIT_BLOCKED
        (blocked,) = consumer.lines("loop.blocked")
        assert "time.sleep(0.1)" in blocked["stack"]


async def _until_succeeded(platform: Platform, job_id: UUID, *, inputs: int) -> None:
    async def succeeded() -> bool:
        return bool((await platform.job(job_id)).succeeded == inputs)

    await eventually(succeeded, timeout_seconds=120, pause_seconds=0.02)


async def test_what_blocks_the_interpreter_itself_ends_the_process_as_well(
    platform: Platform, database_url: str, tmp_path: Path
) -> None:
    """A regular expression holds the interpreter's lock: not even a thread can see to it."""
    began = tmp_path / "began"
    await platform.submit([{"does": "block in C", "file": str(began)}], kind="inside")
    settings = {"lease_seconds": 1, "resend_after_seconds": 60}
    async with consumer_process(database_url, tmp_path / "log", **settings) as consumer:
        await has_begun(consumer, began)
        assert await consumer.exit_code() == -signal.SIGVTALRM
        assert "fullmatch" in consumer.log.read_text()
