"""The platform as a whole is measured by one dispatcher at a time, and shown to autoscalers."""

import json
import math
import time
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from sqlalchemy import make_url
from starlette.requests import Request

from dispatcher.gauges import Gauges
from infra.backlog import Scaling
from infra.database import Database
from infra.telemetry.metrics import Metrics
from localstack.postgres import Cluster
from schema.errors import Unavailable
from schema.outcome import Refused
from tests.platform import KIND, Platform, settings_for
from tests.steps import claim_all, settle_as
from tests.stubs.tcp_proxy import TcpProxy

CONCURRENCY = 4
INTERVAL_SECONDS = 5.0
HELD_SECONDS = 4 * INTERVAL_SECONDS


class Dispatcher:
    """One dispatcher's gauges, and what is seen of them."""

    def __init__(self, database: Database, worker: str, *, relays_inputs: bool = True) -> None:
        self.seconds_later = 0.0
        self._reader = InMemoryMetricReader()
        self._provider = MeterProvider([self._reader], shutdown_on_exit=False)
        self.gauges = Gauges(
            database,
            Metrics(self._provider.get_meter("test")),
            worker=worker,
            interval_seconds=INTERVAL_SECONDS,
            concurrency=CONCURRENCY,
            relays_inputs=relays_inputs,
            clock=lambda: time.monotonic() + self.seconds_later,
        )

    async def seen(self) -> dict[str, Any]:
        """Measure once; give what is shown then."""
        await self.gauges.once()
        return self.shown()

    def points(self, name: str) -> dict[str, float]:
        """Give the values of a gauge by their queue."""
        data = self._reader.get_metrics_data()
        assert data is not None
        return {
            str((point.attributes or {})["queue"]): getattr(point, "value", math.nan)
            for metric in data.resource_metrics[0].scope_metrics[0].metrics
            if metric.name == f"haulage.{name}"
            for point in metric.data.data_points
        }

    def shown(self) -> dict[str, Any]:
        """Give the value of each gauge, the kind's where it has one."""
        data = self._reader.get_metrics_data()
        if data is None or not data.resource_metrics:
            return {}
        return {
            metric.name.removeprefix("haulage."): getattr(metric.data.data_points[0], "value", None)
            for metric in data.resource_metrics[0].scope_metrics[0].metrics
            if metric.data.data_points
        }


async def prepare(platform: Platform) -> None:
    """Leave 30 inputs running, 20 waiting since 100 s, 10 scheduled, and 10 dead of one cause."""
    await platform.rows(
        "INSERT INTO kind_pace (kind, input_ms) VALUES (:kind, 500) RETURNING kind", kind=KIND
    )
    await platform.submit(10)
    (claim,) = await claim_all(platform.database)
    await settle_as(platform.database, claim, *[Refused("Bad", f"no {n}") for n in range(10)])
    await platform.submit(30)
    await claim_all(platform.database)
    waiting = await platform.submit(20)
    await platform.rows(
        "UPDATE outbox SET available_at = now() - interval '100 seconds' WHERE job_id = :id"
        " RETURNING id",
        id=waiting,
    )
    later = await platform.submit(10)
    await platform.rows(
        "UPDATE outbox SET available_at = now() + interval '1 hour' WHERE job_id = :id"
        " RETURNING id",
        id=later,
    )


async def test_what_waits_and_what_runs_is_measured(database: Database, platform: Platform) -> None:
    await prepare(platform)
    seen = await Dispatcher(database, "one").seen()
    assert 100 <= seen.pop("oldest_runnable.age") < 200
    assert 100 <= seen.pop("outbox.lag") < 200
    assert seen == {
        "backlog.entries": 2,
        "backlog.inputs": 20,
        "running.inputs": 30,
        "busy_consumers": 1,
        # 20 inputs of half a second, four at a time, by the one consumer there is
        "backlog.seconds_per_consumer": 2.5,
        "dead_letters": 10,
        "dead_letters.fingerprints": 1,
    }


async def test_what_was_sent_still_waits_though_it_left_the_outbox(
    database: Database, platform: Platform
) -> None:
    job_id = await platform.submit(1)
    await platform.rows(
        "UPDATE outbox SET state = 'SENT', sent_at = now(),"
        " available_at = now() - interval '50 seconds' WHERE job_id = :id RETURNING id",
        id=job_id,
    )
    seen = await Dispatcher(database, "one").seen()
    assert 50 <= seen["oldest_runnable.age"] < 150
    assert (seen["outbox.lag"], seen["backlog.inputs"]) == (0.0, 1)


async def test_each_queue_has_a_lag_of_its_own(database: Database, platform: Platform) -> None:
    """Inputs go on while events wait: one number for both would hide which it is."""
    await platform.submit(1)
    await platform.rows(
        "INSERT INTO outbox (type, job_id, owner_id, kind, payload, correlation_id, available_at)"
        " SELECT 'event', id, owner_id, kind, '{}', 'c', now() - interval '300 seconds' FROM job"
        " RETURNING id"
    )
    dispatcher = Dispatcher(database, "one")
    await dispatcher.seen()
    lags = dispatcher.points("outbox.lag")
    assert 0 <= lags["inputs"] < 100
    assert 300 <= lags["event"] < 400


async def test_without_sqs_inputs_that_wait_are_no_lag_of_a_relay(
    database: Database, platform: Platform
) -> None:
    await platform.submit(1)
    dispatcher = Dispatcher(database, "one", relays_inputs=False)
    await dispatcher.seen()
    assert dispatcher.points("outbox.lag") == {"event": 0}


async def test_one_dispatcher_at_a_time_shows_it(database: Database, platform: Platform) -> None:
    await platform.submit(10)
    first, second = Dispatcher(database, "one"), Dispatcher(database, "two")
    assert await first.seen()
    assert await second.seen() == {}
    assert await first.seen(), "who holds the duty keeps it"
    await platform.rows("UPDATE duty SET held_until = now() - interval '1 second' RETURNING name")
    assert await second.seen(), "another takes over from one that is gone"
    assert await first.seen() == {}


async def test_a_measurement_is_shown_no_longer_than_its_duty_lasts(
    database: Database, platform: Platform
) -> None:
    """Another may hold the duty by then, and one that cannot measure must not look alive."""
    await platform.submit(10)
    dispatcher = Dispatcher(database, "one")
    assert await dispatcher.seen()
    dispatcher.seconds_later = HELD_SECONDS - 1
    assert dispatcher.shown()
    dispatcher.seconds_later = HELD_SECONDS
    assert dispatcher.shown() == {}
    assert await dispatcher.seen(), "it measured anew"


async def test_who_cannot_measure_shows_nothing(
    database_url: str, platform: Platform, postgres: Cluster
) -> None:
    await platform.submit(10)
    async with TcpProxy("127.0.0.1", postgres.port) as proxy:
        url = make_url(database_url).set(port=proxy.port).render_as_string(hide_password=False)
        async with Database.from_settings(settings_for(url), name="cut off") as cut_off:
            dispatcher = Dispatcher(cut_off, "one")
            assert await dispatcher.seen()
            await proxy.outage()
            with pytest.raises(Unavailable):
                await dispatcher.gauges.once()
            assert dispatcher.shown() == {}
            await proxy.listen()
            assert await dispatcher.seen(), "it still holds the duty"


async def test_who_stops_leaves_the_duty_to_the_next(
    database: Database, platform: Platform
) -> None:
    await platform.submit(10)
    first, second, third = (Dispatcher(database, worker) for worker in ("one", "two", "three"))
    async with first.gauges:
        assert await first.seen()
        async with second.gauges:
            assert await second.seen() == {}
        assert await third.seen() == {}, "who never held it does not give it up"
    assert first.shown() == {}
    assert await second.seen()


async def test_who_stops_while_the_database_is_away_lets_the_duty_lapse(
    database_url: str, platform: Platform, postgres: Cluster
) -> None:
    async with TcpProxy("127.0.0.1", postgres.port) as proxy:
        url = make_url(database_url).set(port=proxy.port).render_as_string(hide_password=False)
        async with Database.from_settings(settings_for(url), name="cut off") as cut_off:
            async with Dispatcher(cut_off, "one").gauges as gauges:
                await gauges.once()
                await proxy.outage()
    assert [row.holder for row in await platform.rows("SELECT holder FROM duty")] == ["one"]


async def test_an_autoscaler_is_told_what_it_needs(database: Database, platform: Platform) -> None:
    await prepare(platform)
    scaling = Scaling(database, concurrency=CONCURRENCY, mine=lambda: (3, 4))
    document = await answered(scaling)
    assert 100 <= document.pop("oldestReadySeconds") < 200
    assert document == {
        "readyEntries": 2,
        "readyInputs": 20,
        "isCapped": False,
        "inFlightInputs": 30,
        "busyConsumers": 1,
        "capacityInputs": 4,
        "backlogSeconds": 10.0,
        "backlogSecondsPerConsumer": 2.5,
        "kinds": {
            KIND: {
                "readyEntries": 2,
                "readyInputs": 20,
                "inFlightInputs": 30,
                "backlogSeconds": 10.0,
            }
        },
        "thisConsumer": {"inFlightInputs": 3, "capacityInputs": 4},
    }


async def test_a_backlog_is_unknown_only_where_something_is_ready(
    database: Database, platform: Platform
) -> None:
    async def seconds() -> list[Any]:
        document = await answered(Scaling(database, concurrency=CONCURRENCY))
        of_kinds = [kind["backlogSeconds"] for kind in document["kinds"].values()]
        return [document["backlogSeconds"], document["backlogSecondsPerConsumer"], *of_kinds]

    assert await seconds() == [0.0, 0.0]
    await platform.submit(10)
    assert await seconds() == [None, None, None]
    await claim_all(database)
    assert await seconds() == [0.0, 0.0, 0.0], "it runs, and nothing waits"


async def answered(scaling: Scaling) -> dict[str, Any]:
    answer = await scaling.page(Request({"type": "http"}))
    document: dict[str, Any] = json.loads(bytes(answer.body))
    return document
