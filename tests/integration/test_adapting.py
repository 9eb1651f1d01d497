"""A consumer takes in and runs what it can, and leaves the rest to others at no cost."""

from collections.abc import Mapping
from dataclasses import replace

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from consumer.intake import Intake, Room
from consumer.pace import Paces
from consumer.regulator import Regulator
from infra.database import Database
from infra.queue.protocol import Claim, ClaimedInput
from infra.telemetry.instruments import Instruments
from infra.telemetry.metrics import Metrics
from infra.wakeup import Listener
from schema.kinds import ConcurrencyBounds
from schema.outcome import Failed, Outcome, Refused, Succeeded
from schema.statements.control import cancel_job
from tests.claims import turns
from tests.deliveries import Delivery, open_delivery
from tests.platform import (
    KIND,
    KINDS,
    Deaf,
    Gated,
    Platform,
    Recorder,
    eventually,
    settings_for,
    stretch,
)
from tests.steps import control
from tests.unit.test_executor import Bench

OTHER = "other"


class Neighbour(Recorder):
    """A runner that asks a neighbour, which fails all while more than ``bears`` ask at once."""

    def __init__(self, *, bears: int) -> None:
        super().__init__(self._ask)
        self.bears = bears
        self.asking = 0
        self.most = 0

    async def _ask(self, _claim: Claim, _input: ClaimedInput) -> Outcome:
        self.asking += 1
        self.most = max(self.most, self.asking)
        is_too_much = self.asking > self.bears
        await stretch(0.005)
        is_too_much |= self.asking > self.bears
        self.asking -= 1
        return Failed("Busy", "too much at once") if is_too_much else Succeeded()


class Gauges:
    """What a consumer shows of itself."""

    def __init__(self, delivery: Delivery) -> None:
        self._reader = InMemoryMetricReader()
        provider = MeterProvider([self._reader], shutdown_on_exit=False)
        delivery.instruments = Instruments(metrics=Metrics(provider.get_meter("test")))

    def limits(self) -> Mapping[str, int]:
        """Give how many slots each kind may use."""
        data = self._reader.get_metrics_data()
        assert data is not None
        return {
            str((point.attributes or {})["kind"]): int(getattr(point, "value", 0))
            for metric in data.resource_metrics[0].scope_metrics[0].metrics
            if metric.name == "haulage.consumer.limit"
            for point in metric.data.data_points
        }


async def test_a_consumer_without_a_slot_claims_nothing_and_gives_back_what_waits(
    delivery: Delivery, platform: Platform
) -> None:
    """It had claimed six entries, and held them until the process was restarted."""
    deaf, healthy = Deaf(), Recorder()
    cancelled = await platform.submit(1, chunk_size=1)
    async with delivery.dispatching():
        async with delivery.consuming(
            deaf, worker="sick", concurrency=1, prefetch_inputs=6, cancel_grace_seconds=0.1
        ):
            await deaf.started.wait()
            job_id = await platform.submit(6, chunk_size=1)
            delivery.listener.wake()
            await eventually(lambda: _are_held(platform, by="sick", at_least=3))
            await control(platform, cancel_job, cancelled)
            delivery.listener.tell_controlled()
            await eventually(lambda: _are_held(platform, by="sick", at_most=0))
            async with delivery.consuming(healthy, worker="healthy"):
                await platform.until(job_id, "COMPLETED")
            late = await platform.submit(3, chunk_size=1)
            async with delivery.consuming(healthy, worker="healthy too"):
                await platform.until(late, "COMPLETED")
            assert len(healthy.ran) == 9
            deaf.gate.set()
    assert not deaf.ran[1:], "nothing else has run there"
    assert not await platform.rows("SELECT * FROM attempt")
    inputs = await platform.rows("SELECT DISTINCT attempts FROM input WHERE status = 'SUCCEEDED'")
    assert [row.attempts for row in inputs] == [1], "going from hand to hand cost no attempt"


async def _are_held(
    platform: Platform, *, by: str, at_least: int = 0, at_most: int = 1_000
) -> bool:
    rows = await platform.rows(
        "SELECT count(*) AS n FROM outbox WHERE state = 'CLAIMED' AND locked_by = :by", by=by
    )
    return bool(at_least <= rows[0].n <= at_most)


async def test_what_a_consumer_will_not_begin_for_long_is_run_by_others(
    delivery: Delivery, platform: Platform
) -> None:
    """It took fifty entries of what looked quick; the first of them takes for ever."""
    slow, idle = Gated(), Recorder()
    job_id = await platform.submit(50, chunk_size=1)
    async with delivery.dispatching():
        delivery.listener.wake()
        async with delivery.consuming(
            slow,
            worker="slow",
            concurrency=1,
            prefetch_inputs=100,
            prefetch_seconds=0.1,
            concurrency_window_seconds=0.1,
        ):
            await slow.started.wait()
            async with delivery.consuming(idle, worker="idle"):
                await eventually(lambda: len(idle.ran) == 49)
            slow.gate.set()
            await platform.until(job_id, "COMPLETED")
    assert len(slow.ran) == 1
    assert not await platform.rows("SELECT * FROM attempt")


async def test_what_was_given_back_is_not_claimed_again_while_what_runs_is_slow(
    database: Database,
) -> None:
    """It was claimed by the pace of what had ended, and given back by that of what ran, in turn."""
    bench, paces = Bench(slots=2), Paces(database)
    intake = Intake(slots=2, prefetch_inputs=100, prefetch_seconds=2.0, kinds=["noop"])
    regulator = Regulator(
        intake,
        bench.executor,
        paces,
        bounds={"noop": ConcurrencyBounds()},
        slots=2,
        minimum=1,
        window_seconds=1.0,
        prefetch_seconds=2.0,
        clock=lambda: bench.now,
    )
    intake.took(Room(0, 0.0), [("noop", 2)])
    paces.note("noop", elapsed_ms=1.0, inputs=1)
    _, running = bench.begin(1, 2)
    await turns()
    regulator.once()
    assert intake.target == 100
    bench.now = 9.0
    regulator.once()
    assert intake.target == 2
    await bench.say(1, 2)
    await running


async def test_a_kind_that_overruns_its_neighbour_has_fewer_slots_and_gets_them_back(
    database: Database, database_url: str, platform: Platform
) -> None:
    settings = settings_for(database_url, concurrency_window_seconds=0.05)
    overrun, quick = Neighbour(bears=4), Neighbour(bears=1_000)
    failing = await platform.submit(3_000, max_attempts=100)
    listener = Listener(settings, name="test")
    async with open_delivery("outbox", settings, database, listener) as delivery:
        delivery.kinds = {**KINDS, OTHER: replace(KINDS[KIND], name=OTHER)}
        gauges = Gauges(delivery)
        async with (
            delivery.dispatching(),
            delivery.consuming({KIND: overrun, OTHER: quick}),
        ):
            await eventually(lambda: gauges.limits()[KIND] <= 4)
            assert gauges.limits()[OTHER] == 16
            job_id = await platform.submit(300, kind=OTHER)
            await platform.until(job_id, "COMPLETED")
            assert quick.most > 8, "the slots of the other kind are its own"
            assert (await platform.job(failing)).status == "RUNNING"
            assert gauges.limits()[KIND] <= 8
            overrun.bears = 1_000
            await eventually(lambda: gauges.limits()[KIND] == 16)
            await platform.until(failing, "COMPLETED")


async def test_all_kinds_run_fewer_at_once_while_connections_of_the_pool_are_waited_for(
    database: Database, database_url: str, platform: Platform
) -> None:
    """Sixteen ask for five connections, and each keeps its own for a while."""
    settings = settings_for(database_url, concurrency_window_seconds=0.1)
    is_greedy = True

    async def hold(_claim: Claim, _input: ClaimedInput) -> Outcome:
        if is_greedy:
            await platform.rows("SELECT pg_sleep(0.2)")
        else:
            await stretch(0.01)
        return Succeeded()

    job_id = await platform.submit(2_000)
    listener = Listener(settings, name="test")
    async with open_delivery("outbox", settings, database, listener) as delivery:
        gauges = Gauges(delivery)
        async with delivery.dispatching(), delivery.consuming(Recorder(hold)):
            await eventually(lambda: gauges.limits()[KIND] <= 8)
            is_greedy = False
            await eventually(lambda: gauges.limits()[KIND] == 16)
            await platform.until(job_id, "COMPLETED")


async def test_what_is_refused_or_not_there_takes_no_slot_from_its_kind(
    delivery: Delivery, platform: Platform
) -> None:
    gauges, seen = Gauges(delivery), set[int]()

    async def refuse(_claim: Claim, _input: ClaimedInput) -> Outcome:
        seen.add(gauges.limits()[KIND])
        return Refused("Bad", "no good")

    job_id = await platform.submit(200)
    async with (
        delivery.dispatching(),
        delivery.consuming(Recorder(refuse), concurrency_window_seconds=0.01),
    ):
        delivery.listener.wake()
        await platform.until(job_id, "FAILED")
    assert seen == {16}
