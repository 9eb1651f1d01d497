"""Postgres as a job queue: whose clock counts, how often rows are written, what a commit may do."""

import ast
import asyncio
import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.database import Database
from infra.process import worker_name
from infra.settle import Settlement, settle
from schema.outcome import Backoff, Failed, Outcome, Succeeded
from tests.deliveries import Delivery
from tests.integration.faults.test_driver import _each
from tests.platform import KIND, Platform, Recorder, eventually
from tests.stubs.postgres_wire import is_commit, is_sync_after_execute
from tests.stubs.tcp_proxy import Cut, TcpProxy

_CHECKOUT = Path(__file__).parents[3]
_WALL_CLOCKS = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "date.today"}


def names_called(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = ast.unparse(node.func.value).rsplit(".", 1)[-1]
            yield f"{owner}.{node.func.attr}"


@pytest.mark.parametrize("folder", ["consumer", "dispatcher", "infra", "schema/statements"])
def test_no_decision_is_made_by_the_clock_of_a_host(folder: str) -> None:
    """Leases and due times are the database's; a host that is ten minutes ahead changes nothing.

    Telemetry tells when something was, and decides nothing.
    """
    found = sorted((_CHECKOUT / folder).rglob("*.py"))
    paths = [path for path in found if path.parent.name != "telemetry"]
    assert len(paths) > 3
    called = {(path.name, name) for path in paths for name in names_called(path)}
    assert not [use for use in called if use[1] in _WALL_CLOCKS]


def test_a_worker_never_has_the_name_of_an_earlier_one() -> None:
    assert len({worker_name() for _ in range(100)}) == 100


async def test_forty_workers_update_their_job_far_less_often_than_once_an_input(
    station: Delivery, platform: Platform
) -> None:
    async with station.consuming(Recorder(), concurrency=40):
        job_id = await platform.submit(1_000, chunk_size=25)
        await station.deliver()
        await platform.until(job_id, "COMPLETED")
    await eventually(lambda: _updated(platform))
    (row,) = await platform.rows(
        "SELECT n_tup_upd AS n FROM pg_stat_user_tables WHERE relname = 'job'"
    )
    assert row.n <= 500


async def _updated(platform: Platform) -> bool:
    await platform.rows("SELECT pg_stat_force_next_flush()")
    rows = await platform.rows(
        "SELECT n_tup_upd AS n FROM pg_stat_user_tables WHERE relname = 'input'"
    )
    return bool(rows[0].n == 1_000)


async def test_no_task_is_collected_while_it_works(station: Delivery, platform: Platform) -> None:
    """The collector runs all the time: a task that nobody refers to would vanish."""
    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        async with station.dispatching(), station.consuming(Recorder()):
            job_id = await platform.submit(40, chunk_size=4)
            station.listener.wake()
            await platform.until(job_id, "COMPLETED")
    finally:
        gc.set_threshold(*before)


@pytest.mark.parametrize("cut", Cut)
@pytest.mark.parametrize("fails", [False, True], ids=["one statement", "a transaction"])
async def test_outcomes_whose_commit_lost_its_connection_count_once(
    proxied: Database, platform: Platform, postgres_proxy: TcpProxy, station: Delivery,
    cut: Cut, fails: bool,
) -> None:  # fmt: skip
    """Whether it happened or not cannot be known: the settler asks again, and both end the same."""

    def say(claim: object, input_: object) -> Outcome:
        at = is_commit if fails else is_sync_after_execute()
        if not postgres_proxy.cut.is_set():
            postgres_proxy.reset_at(at, cut)
        return Failed("Boom", "x", retry_after_seconds=0) if fails else Succeeded()

    delivery = Delivery(
        "outbox", station.settings.model_copy(update={"queue_url": None}), proxied, station.listener
    )
    async with delivery.consuming(Recorder(say), concurrency=1):
        job_id = await platform.submit(1, max_attempts=2)
        await platform.until(job_id, "FAILED" if fails else "COMPLETED")
    assert postgres_proxy.cut.is_set()
    job = await platform.job(job_id)
    assert (job.succeeded, job.dlq) == ((0, 1) if fails else (1, 0))
    attempts = await platform.rows("SELECT attempt FROM attempt ORDER BY attempt")
    assert [row.attempt for row in attempts] == ([1, 2] if fails else [])
    await platform.check_consistency()


@pytest.mark.parametrize("sqlstate", ["40001", "40P01"])
async def test_a_settling_that_loses_a_race_is_written_again_and_the_work_is_not_repeated(
    station: Delivery, platform: Platform, database: Database, sqlstate: str
) -> None:
    await database.run(
        lambda connection: _each(
            connection,
            "CREATE SEQUENCE refusals",
            f"""CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                IF nextval('refusals') <= 2 THEN
                    RAISE EXCEPTION 'scripted' USING ERRCODE = '{sqlstate}';
                END IF; RETURN NULL; END $$""",
            """CREATE CONSTRAINT TRIGGER refused AFTER UPDATE ON input
                DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()""",
        )
    )
    recorder = Recorder()
    job_id = await platform.submit(1)
    await station.deliver()
    async with station.consuming(recorder):
        await platform.until(job_id, "COMPLETED")
    assert len(recorder.ran) == 1
    assert not await platform.rows("SELECT 1 FROM attempt")


async def test_three_thousand_outcomes_are_one_statement(
    station: Delivery, platform: Platform, database: Database
) -> None:
    """Eleven values each would be 33,000 parameters, more than Postgres counts."""
    job_id = await platform.submit(3_000, chunk_size=3_000)
    await station.deliver()
    (claim,) = await station.queue("w").claim(10, asyncio.Event())
    lines = await settle(
        database,
        "w",
        [Settlement(claim, input_, Succeeded(), 1) for input_ in claim.inputs],
        backoffs={KIND: Backoff()},
        jitter=lambda: 0.5,
    )
    assert all(line.accepted for line in lines)
    assert (await platform.job(job_id)).status == "COMPLETED"
