"""Each input of an isolated kind harms nobody but itself, whatever it does to its process."""

import asyncio
import ctypes
import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from structlog.testing import capture_logs

from consumer.executor import Runner
from consumer.processors.children import Children
from consumer.processors.isolated import Isolated
from consumer.processors.loading import load_runners
from consumer.processors.protocol import Resources
from infra.database import Database
from schema.errors import Misconfigured
from schema.kinds import JobInput, Kind
from schema.outcome import Failed, Missing, Outcome, Refused, Skipped, Succeeded
from tests import poison
from tests.claims import claim_of
from tests.deliveries import Delivery
from tests.integration.isolation.workshops import children, consuming, outcomes
from tests.platform import Platform, eventually

MISDEEDS: Mapping[str, str] = {
    "block": "TimeLimit",
    "block in C": "TimeLimit",
    "swallow": "TimeLimit",
    "chatter": "TimeLimit",
    "one long line": "TimeLimit",
    "exit": "SystemExit",
    "exit in a task": "ProcessDied",
    "exit at once": "ProcessDied",
    "crash": "ProcessDied",
    "kill": "ProcessDied",
    "leave a process": "ProcessDied",
    "hoard": "MemoryLimit",
    "cancel itself": "CancelledError",
}


@pytest.fixture(autouse=True)
async def _none_left() -> None:
    assert not children()


async def test_every_misdeed_harms_its_own_input_and_neighbours_succeed(
    delivery: Delivery, platform: Platform
) -> None:
    bodies = [{"does": does} for misdeed in MISDEEDS for does in (misdeed, "nothing")]
    job_id = await platform.submit(bodies, chunk_size=len(bodies), kind="isolated", max_attempts=1)
    neighbours = await platform.submit([{}] * 20, kind="inside", max_attempts=1)
    async with consuming(delivery, poison.ISOLATED, poison.INSIDE, concurrency=4):
        await platform.until(neighbours, "COMPLETED")
        await platform.until(job_id, "FAILED", timeout_seconds=240)
    ended = await outcomes(platform, job_id)
    assert {body["does"]: ended[n] for n, body in enumerate(bodies) if n % 2 == 0} == {
        misdeed: ("DLQ", 1, error_class) for misdeed, error_class in MISDEEDS.items()
    }
    assert {ended[n] for n in range(1, len(bodies), 2)} == {("SUCCEEDED", 1, None)}
    await platform.check_consistency()
    assert not children(), "no child outlives its consumer, and none is a zombie"
    assert not _left_by_poison()


async def test_a_misdeed_is_tried_again_until_the_attempts_are_used_up(
    delivery: Delivery, platform: Platform
) -> None:
    job_id = await platform.submit([{"does": "exit at once"}], kind="isolated", max_attempts=2)
    async with consuming(delivery, poison.ISOLATED):
        await platform.until(job_id, "FAILED", timeout_seconds=120)
    assert await outcomes(platform, job_id) == {0: ("DLQ", 2, "ProcessDied")}


@pytest.fixture
def resources(delivery: Delivery, database: Database) -> Resources:
    settings = delivery.settings.model_copy(update={"kinds": poison.REFERENCES})
    return Resources(settings, database, None)


async def ask(runner: Runner, kind: Kind, **body: object) -> Outcome:
    claim = claim_of(kind.name, body)
    (outcome,) = await runner.run(claim, claim.inputs)
    return outcome


def pid_in(outcome: Outcome) -> int:
    assert isinstance(outcome, Succeeded)
    return int(outcome.result["pid"])


async def test_a_child_is_of_its_own_session_reused_and_replaced_after_so_many_inputs(
    resources: Resources,
) -> None:
    settings = resources.settings.model_copy(update={"isolated_inputs": 2})
    async with Children(settings) as these:
        runner = Isolated(poison.UNLIMITED, these)
        first = pid_in(await ask(runner, poison.UNLIMITED))
        process = psutil.Process(first)
        assert (os.getsid(first), process.ppid()) == (first, psutil.Process().pid)
        pids = [pid_in(await ask(runner, poison.UNLIMITED)) for _ in range(2)]
        assert pids[0] == first
        assert pids[1] != first
    assert not children()


async def test_there_are_no_more_children_than_slots_whatever_their_kinds(
    resources: Resources,
) -> None:
    settings = resources.settings.model_copy(update={"concurrency": 1})
    async with Children(settings) as these:
        for kind in (poison.UNLIMITED, poison.ISOLATED):
            assert isinstance(await ask(Isolated(kind, these), kind), Succeeded)

        async def one_is_left() -> bool:
            return len(children()) == 1

        await eventually(one_is_left)


async def test_interrupting_a_run_kills_its_child(resources: Resources, tmp_path: Path) -> None:
    began = tmp_path / "began"
    async with Children(resources.settings) as these:
        runner = Isolated(poison.UNLIMITED, these)
        running = asyncio.create_task(
            ask(runner, poison.UNLIMITED, does="swallow", file=str(began))
        )
        await eventually(_has_begun(began))
        ((_, _, pid),) = poison.marks(began)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

        async def gone() -> bool:
            return not psutil.pid_exists(pid)

        await eventually(gone)
        assert isinstance(await ask(runner, poison.UNLIMITED), Succeeded), "the next has another"


async def test_what_a_child_writes_is_logged_with_the_correlation_id_and_within_bounds(
    resources: Resources,
) -> None:
    with capture_logs() as logs:
        async with Children(resources.settings) as these:
            runner = Isolated(poison.ISOLATED, these)
            await ask(runner, poison.ISOLATED, does="print")

            async def heard() -> bool:
                return any(line["event"] == "processor.output" for line in logs)

            # While the child lives on: it has no buffer that it would empty at its end.
            await eventually(heard)
            assert logs[-1]["line"] == "printed for the log"
            logs.clear()
            await ask(runner, poison.ISOLATED, does="shout")
            await ask(runner, poison.ISOLATED, does="chatter")
            await ask(runner, poison.ISOLATED, does="raise")
    lines = [line for line in logs if line["event"] == "processor.output"]
    assert lines[0]["line"] == "heard in the log"
    assert {(line["correlation_id"], line["job"]) for line in lines} == {
        ("corr-1", "J20260110_000777")
    }
    assert len(lines) == 1 + 200
    (dropped,) = (line for line in logs if line["event"] == "processor.output_dropped")
    assert dropped["lines"] > 1_000
    (failed,) = (line for line in logs if line["event"] == "processor.failed")
    assert (failed["error_class"], failed["log_level"]) == ("LookupError", "warning")


class Unfit(JobInput):
    pass


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Kind("unknown", Unfit, "tests.poison:PoisonProcessor", isolation="process"), "HAULAGE_KI"),
        (poison.BROKEN, "made a Broken without process"),
    ],
)
async def test_what_no_child_can_load_keeps_the_consumer_from_starting(
    resources: Resources, kind: Kind, reason: str
) -> None:
    with pytest.raises(Misconfigured, match=rf"kind '{kind.name}'.*{reason}"):
        async with load_runners({kind.name: kind}, resources, asyncio.Event()):
            pass
    assert not children()


async def test_what_a_killed_child_leaves_to_process_1_is_collected(resources: Resources) -> None:
    """In a container the consumer is process 1: each kill left it a dead process for ever."""
    async with Children(resources.settings) as these:
        with _as_process_1():
            outcome = await ask(
                Isolated(poison.UNLIMITED, these), poison.UNLIMITED, does="leave a process"
            )
            assert isinstance(outcome, Failed)

            async def none_is_left() -> bool:
                statuses = [each.status() for each in psutil.Process().children()]
                return psutil.STATUS_ZOMBIE not in statuses and not _left_by_poison()

            await eventually(none_is_left)


@contextmanager
def _as_process_1() -> Iterator[None]:
    """Let orphans become our children, where the system can."""
    if sys.platform != "linux":
        yield
        return
    c, set_subreaper = ctypes.CDLL(None, use_errno=True), 36
    assert c.prctl(set_subreaper, 1, 0, 0, 0) == 0
    try:
        yield
    finally:
        assert c.prctl(set_subreaper, 0, 0, 0, 0) == 0


async def test_outcomes_pass_unchanged_between_the_processes(resources: Resources) -> None:
    async with Children(resources.settings) as these:
        runner = Isolated(poison.UNLIMITED, these)
        said = [
            await ask(runner, poison.UNLIMITED, does=does)
            for does in ("skip", "miss", "refuse", "fail", "no JSON")
        ]
    assert said == [
        Skipped("nothing to do"),
        Missing("not there"),
        Refused("InvalidInput", "cannot do refuse"),
        Failed("Fault", "later", 7.0),
        Failed(
            "BadOutcome",
            "result is not JSON that can be stored: Object of type set is not JSON serializable",
        ),
    ]


def _has_begun(path: Path) -> Callable[[], Awaitable[bool]]:
    async def begun() -> bool:
        return bool(poison.marks(path))

    return begun


def _left_by_poison() -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if poison.MARKER in (process.info["cmdline"] or ())
    ]
