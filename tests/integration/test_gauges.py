"""The platform as a whole is measured by one dispatcher at a time, and shown to autoscalers."""

import json
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from starlette.requests import Request

from dispatcher.gauges import Gauges
from infra.backlog import Scaling, measure
from infra.database import Database
from infra.telemetry.metrics import Metrics
from schema.outcome import Refused
from tests.platform import KIND, Platform
from tests.steps import claim_all, lapse, settle_as

CONCURRENCY = 4


class Dispatcher:
    """One dispatcher's gauges, and what is seen of them."""

    def __init__(self, database: Database, worker: str) -> None:
        self._reader = InMemoryMetricReader()
        self._provider = MeterProvider([self._reader], shutdown_on_exit=False)
        self.gauges = Gauges(
            database,
            Metrics(self._provider.get_meter("test")),
            worker=worker,
            interval_seconds=5,
            concurrency=CONCURRENCY,
        )

    async def seen(self) -> dict[str, Any]:
        """Measure once; give the value of each gauge, the kind's where it has one."""
        await self.gauges.once()
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


async def test_one_dispatcher_at_a_time_shows_it(database: Database, platform: Platform) -> None:
    await platform.submit(10)
    first, second = Dispatcher(database, "one"), Dispatcher(database, "two")
    assert await first.seen()
    assert await second.seen() == {}
    assert await first.seen(), "who holds the duty keeps it"
    await platform.rows("UPDATE duty SET held_until = now() - interval '1 second' RETURNING name")
    assert await second.seen(), "another takes over from one that is gone"
    assert await first.seen() == {}


async def test_an_empty_platform_has_no_backlog(database: Database) -> None:
    backlog = await measure(database)
    assert (backlog.total.ready_entries, backlog.runnable_seconds, backlog.kinds) == (0, 0.0, {})


async def test_counting_stops_at_its_limit_and_says_so(
    database: Database, platform: Platform
) -> None:
    await platform.submit(50)
    backlog = await measure(database, most=3)
    assert (backlog.total.ready_entries, backlog.is_capped) == (3, True)


async def test_what_is_scheduled_does_not_use_up_the_limit(
    database: Database, platform: Platform
) -> None:
    later = await platform.submit(50)
    await platform.rows(
        "UPDATE outbox SET available_at = now() + interval '1 hour', deferred = true"
        " WHERE job_id = :id RETURNING id",
        id=later,
    )
    await platform.submit(1)
    backlog = await measure(database, most=3)
    assert (backlog.total.ready_inputs, backlog.is_capped) == (1, False)


async def test_beyond_the_limit_the_oldest_is_still_seen(
    database: Database, platform: Platform
) -> None:
    waiting = await platform.submit(10)
    await platform.rows(
        "UPDATE outbox SET available_at = now() - interval '100 seconds' WHERE job_id = :id"
        " RETURNING id",
        id=waiting,
    )
    await platform.submit(50)
    # Rewritten, it stands behind the others in the table.
    await platform.rows(
        "UPDATE outbox SET priority = 4 WHERE job_id = :id RETURNING id", id=waiting
    )
    backlog = await measure(database, most=2)
    assert backlog.is_capped
    assert 100 <= backlog.runnable_seconds < 200


async def test_what_the_relay_puts_off_grows_older(database: Database, platform: Platform) -> None:
    job_id = await platform.submit(1)
    await platform.rows(
        "UPDATE outbox SET turn_at = now() - interval '100 seconds', relay_attempts = 3,"
        " available_at = now() + interval '30 seconds', deferred = true WHERE job_id = :id"
        " RETURNING id",
        id=job_id,
    )
    backlog = await measure(database)
    assert backlog.total.ready_entries == 1
    assert 100 <= backlog.unsent_seconds < 200
    assert 100 <= backlog.runnable_seconds < 200


async def test_an_event_that_waits_is_unsent_but_no_work(
    database: Database, platform: Platform
) -> None:
    await platform.rows(
        "INSERT INTO outbox (type, job_id, owner_id, kind, payload, available_at, correlation_id)"
        " VALUES ('event', gen_random_uuid(), :owner, :kind, '{}',"
        " now() - interval '50 seconds', 'c') RETURNING id",
        owner=platform.owner_id,
        kind=KIND,
    )
    backlog = await measure(database)
    assert (backlog.total.ready_entries, backlog.runnable_seconds) == (0, 0.0)
    assert 50 <= backlog.unsent_seconds < 150


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


async def test_lapsed_leases_run_nowhere(database: Database, platform: Platform) -> None:
    job_id = await platform.submit(10)
    await claim_all(database)
    await lapse(platform, job_id)
    document = await answered(Scaling(database, concurrency=CONCURRENCY))
    assert (document["inFlightInputs"], document["busyConsumers"]) == (0, 0)


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
