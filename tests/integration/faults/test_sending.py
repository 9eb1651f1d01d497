"""Sending to SQS: what was taken, what was not, what can never be, and how often it is tried."""

import asyncio
from typing import Any

import pytest
from sqlalchemy import text

from infra.clients import Clients
from infra.database import Database
from infra.queue.sending import Outgoing, SqsSender
from schema.errors import Unavailable, Unusable
from schema.outcome import Failed, Outcome
from tests.deliveries import Delivery
from tests.integration.faults.stations import log_lines, named, queue_url, sqs_station, waiting
from tests.platform import KIND, KINDS, Platform, Recorder, eventually
from tests.stubs.sqs import BlackHole, Call, FailEntries, Fault, Refuse, SqsStub
from tests.stubs.sqs.faults import ACCESS_DENIED, TOKEN_EXPIRED
from tests.stubs.tcp_proxy import TcpProxy


def sender(station: Delivery, limit_bytes: int = 256 * 1024) -> SqsSender:
    assert station.sqs is not None
    return SqsSender(station.sqs, queue_url=queue_url(station), limit_bytes=limit_bytes)


def outgoing(entry_id: int, body: str = "{}", **attributes: str) -> Outgoing:
    return Outgoing(entry_id, body, {"correlation_id": f"c{entry_id}"} | attributes, "owner")


async def test_only_entries_that_sqs_says_it_took_are_marked_sent(
    station: Delivery, stub: SqsStub, platform: Platform
) -> None:
    job_id = await platform.submit(10, chunk_size=1)
    stub.faults.next("SendMessageBatch", FailEntries((3,)))
    report = await station.relay().relay_once()
    assert (report.sent, report.put_off, report.parked) == (9, 1, 0)
    states = [entry.state for entry in await platform.entries(job_id)]
    assert states == ["SENT"] * 3 + ["PENDING"] + ["SENT"] * 6
    await eventually(lambda: _relayed(station, platform))
    assert waiting(stub, station) == 10


async def _relayed(station: Delivery, platform: Platform) -> bool:
    await station.relay().relay_once()
    return not await platform.rows("SELECT id FROM outbox WHERE state = 'PENDING'")


async def test_nothing_of_a_call_that_failed_counts_as_sent(
    station: Delivery, stub: SqsStub
) -> None:
    stub.faults.always("SendMessageBatch", Refuse("ServiceUnavailable", 503))
    with pytest.raises(Unavailable):
        await sender(station).send([outgoing(1), outgoing(2)])


async def test_batches_fit_the_queue_together_and_bytes_count_not_characters(
    station: Delivery, stub: SqsStub
) -> None:
    assert station.sqs is not None
    limit = 256 * 1024
    await station.sqs.set_queue_attributes(
        QueueUrl=queue_url(station), Attributes={"MaximumMessageSize": str(limit)}
    )
    ours = sender(station, limit)
    messages = [outgoing(1, "x" * 200_000), outgoing(2, "é" * 100_000), outgoing(3, "y")]
    batches = ours.pack(messages)
    assert [[message.entry_id for message in batch] for batch in batches] == [[1], [2, 3]]
    for batch in batches:
        assert not (await ours.send(batch)).unsent
    attributes_count = ours.pack([outgoing(n, "x" * 130_000, baggage="b" * 1_200) for n in (1, 2)])
    assert len(attributes_count) == 2
    (too_large,) = ours.pack([outgoing(9, "z" * (limit + 1))])
    report = await ours.send(too_large)
    assert [(failure.entry_id, failure.fatal) for failure in report.unsent] == [(9, True)]


@pytest.mark.parametrize(
    "trace",
    [
        {f"a{n}": "x" for n in range(10)},
        {"tracestate": "a\x0b"},
        {"baggage": "b" * 300_000},
    ],
    ids=["eleven attributes", "control character", "too large"],
)
async def test_a_trace_that_sqs_does_not_take_is_dropped_before_the_message_is(
    station: Delivery, stub: SqsStub, trace: dict[str, str]
) -> None:
    ours = sender(station)
    (batch,) = ours.pack([outgoing(1), outgoing(2, **trace)])
    report = await ours.send(batch)
    assert sorted(report.sent) == [1, 2]
    assert not report.unsent
    assert station.sqs is not None
    answer = await station.sqs.receive_message(
        QueueUrl=queue_url(station), MaxNumberOfMessages=10, MessageAttributeNames=["All"]
    )
    assert sorted(
        message["MessageAttributes"]["correlation_id"]["StringValue"]
        for message in answer["Messages"]
    ) == ["c1", "c2"]


def refuse_calls_with(spoilt: str, code: str = "InvalidMessageContents") -> Any:
    """Make SQS refuse a whole call, as emulators and old limits do, for one message in it."""

    def hook(call: Call) -> Fault | None:
        entries = call.parameters.get("Entries", ())
        if call.action == "SendMessageBatch" and any(
            spoilt in entry["MessageBody"] for entry in entries
        ):
            return Refuse(code, 400, "See the documentation")
        return None

    return hook


@pytest.mark.parametrize("code", ["InvalidMessageContents", "InvalidParameterValue"])
async def test_one_message_for_which_the_whole_call_is_refused_holds_up_no_other(
    station: Delivery, stub: SqsStub, platform: Platform, code: str
) -> None:
    job_id = await platform.submit(10, chunk_size=1)
    head = (await platform.entries(job_id))[0]
    stub.faults.hook = refuse_calls_with(f'"entry":{head.id},', code)
    report = await station.relay().relay_once()
    assert (report.sent, report.parked) == (9, 1)
    parked = (await platform.entries(job_id))[0]
    assert parked.state == "PARKED"
    assert code in parked.parked_reason
    assert parked.parked_reason.endswith("See the documentation")


async def test_a_queue_that_takes_nothing_is_at_fault_and_not_its_messages(
    station: Delivery, stub: SqsStub, platform: Platform
) -> None:
    """Every call for a FIFO queue, or one of a wrong setting, fails like one for a bad message."""
    job_id = await platform.submit(20, chunk_size=1)
    stub.faults.always("SendMessageBatch", Refuse("InvalidParameterValue", 400, "no such thing"))
    stop, relay = asyncio.Event(), station.relay(relay_backoff_base_seconds=0.1)
    with log_lines() as lines:
        async with asyncio.TaskGroup() as group:
            group.create_task(relay.run(stop))
            await eventually(lambda: _tried_again(platform))
            with pytest.raises(Unusable, match=r"takes nothing: .*no such thing"):
                await relay.sender.ping()
            stub.faults.clear()
            await eventually(lambda: _all_sent(platform, job_id))
            await relay.sender.ping()
            stop.set()
    events = [line["event"] for line in lines if line["event"].startswith("relay.")]
    assert events[:1] == ["relay.away"]
    assert events.count("relay.away") == events.count("relay.recovered") == 1
    assert not named(lines, "relay.parked")


async def test_a_queue_that_comes_back_while_a_batch_is_taken_apart_parks_nothing(
    station: Delivery, stub: SqsStub
) -> None:
    """The first halves were refused for its sake, and the last were taken."""
    refusal = Refuse("InvalidParameterValue", 400)
    # The call, its first half, and of that the first message, with its trace and without.
    stub.faults.next("SendMessageBatch", *[refusal] * 4)
    report = await sender(station).send([outgoing(n, baggage="b") for n in range(4)])
    assert sorted(report.sent) == [0, 1, 2, 3]
    assert not report.unsent


async def test_what_was_refused_long_ago_is_not_blamed_for_what_happened_since(
    station: Delivery, stub: SqsStub
) -> None:
    """Another dispatcher sent it then; of that this one hears nothing."""
    now = [0.0]
    assert station.sqs is not None
    ours = SqsSender(
        station.sqs,
        queue_url=queue_url(station),
        limit_bytes=1_024,
        tried_within_seconds=10,
        clock=lambda: now[0],
    )
    refusal = Refuse("InvalidParameterValue", 400)
    stub.faults.next("SendMessageBatch", refusal)
    assert (await ours.send([outgoing(1)])).is_of_one
    now[0] = 100.0
    assert (await ours.send([outgoing(2)])).sent == [2]
    now[0] = 200.0
    stub.faults.next("SendMessageBatch", refusal)
    report = await ours.send([outgoing(1)])
    assert report.is_of_one
    assert not report.unsent[0].fatal


async def _tried_again(platform: Platform) -> bool:
    return bool(await platform.rows("SELECT 1 FROM outbox WHERE relay_attempts > 1"))


@pytest.mark.parametrize(
    "code",
    ["RequestThrottled", "KmsThrottled", "KMS.DisabledException", "AccessDenied", "OverLimit"],
)
async def test_a_code_means_of_an_entry_what_it_means_of_a_call(
    station: Delivery, stub: SqsStub, platform: Platform, code: str
) -> None:
    """SQS says that the sender is at fault, too, where no message is."""
    await platform.submit(3, chunk_size=1)
    stub.faults.next("SendMessageBatch", FailEntries((0, 1, 2), code, sender_fault=True))
    report = await station.relay().relay_once()
    assert (report.sent, report.put_off, report.parked) == (0, 3, 0)
    assert report.fault is not None
    assert code in report.fault


async def test_a_message_alone_is_parked_once_the_queue_took_another(
    station: Delivery, stub: SqsStub, platform: Platform
) -> None:
    """Nobody can tell before; and the other does not wait for what becomes of it."""
    await platform.submit(1)
    (entry,) = await platform.rows("SELECT id FROM outbox")
    stub.faults.hook = refuse_calls_with(f'"entry":{entry.id},', "InvalidParameterValue")
    relay = station.relay(relay_backoff_base_seconds=3_600.0, relay_backoff_cap_seconds=36_000.0)
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(relay.run(stop))
        await eventually(lambda: _put_off(platform, entry.id))
        later = await platform.submit(1)
        station.listener.wake()
        await eventually(lambda: _all_sent(platform, later))
        await platform.rows(
            "UPDATE outbox SET available_at = now(), deferred = false WHERE id = :id RETURNING id",
            id=entry.id,
        )
        station.listener.wake()
        await eventually(lambda: _is_parked(platform, entry.id))
        stop.set()


async def _is_parked(platform: Platform, entry_id: int) -> bool:
    sql = "SELECT 1 FROM outbox WHERE id = :id AND state = 'PARKED'"
    return bool(await platform.rows(sql, id=entry_id))


async def test_an_entry_that_keeps_failing_does_not_slow_down_the_others(
    station: Delivery, stub: SqsStub, platform: Platform
) -> None:
    """The backoff of a failing entry is its own: the relay is not away because of it."""
    failing = await platform.submit(1)
    (entry,) = await platform.entries(failing)

    def hook(call: Call) -> Fault | None:
        for at, sent in enumerate(call.parameters.get("Entries", ())):
            if call.action == "SendMessageBatch" and f'"entry":{entry.id},' in sent["MessageBody"]:
                return FailEntries((at,))
        return None

    stub.faults.hook = hook
    relay = station.relay(relay_backoff_base_seconds=3_600.0, relay_backoff_cap_seconds=36_000.0)
    stop = asyncio.Event()
    with log_lines() as lines:
        async with asyncio.TaskGroup() as group:
            group.create_task(relay.run(stop))
            await eventually(lambda: _put_off(platform, entry.id))
            later = await platform.submit(5, chunk_size=1)
            station.listener.wake()
            await eventually(lambda: _all_sent(platform, later))
            stop.set()
    assert not named(lines, "relay.away")


async def _put_off(platform: Platform, entry_id: int) -> bool:
    rows = await platform.rows(
        "SELECT 1 FROM outbox WHERE id = :id AND available_at > now() AND relay_attempts > 0",
        id=entry_id,
    )
    return bool(rows)


async def _all_sent(platform: Platform, job_id: Any) -> bool:
    return {entry.state for entry in await platform.entries(job_id)} == {"SENT"}


async def test_while_sqs_refuses_the_relay_backs_off_however_often_it_is_woken(
    station: Delivery, stub: SqsStub, platform: Platform, database: Database
) -> None:
    """Counted in calls: every submission wakes the relay, and none of them cuts a backoff short."""
    stub.faults.always("SendMessageBatch", ACCESS_DENIED)
    relay, stop = station.relay(relay_backoff_base_seconds=60.0), asyncio.Event()
    with log_lines() as lines:
        async with asyncio.TaskGroup() as group:
            group.create_task(relay.run(stop))
            for _ in range(60):
                await platform.submit(1)
                station.listener.wake()
            stop.set()
            station.listener.wake()
    assert 1 <= stub.calls["SendMessageBatch"] <= 8
    assert len(named(lines, "relay.away")) <= 1
    states = await database.fetch(text("SELECT DISTINCT state FROM outbox"))
    assert [row.state for row in states] == ["PENDING"]


async def test_a_backoff_of_fifteen_hours_stays_in_the_database(
    station: Delivery, stub: SqsStub, platform: Platform
) -> None:
    """SQS delays for 900 s at most: no call may ask it for more, or for any delay at all."""
    calls: list[Call] = []
    stub.faults.hook = calls.append
    capped = KINDS[KIND].backoff.cap_seconds

    def say(_claim: object, _input: object) -> Outcome:
        return Failed("Busy", "come back later", retry_after_seconds=54_524)

    job_id = await platform.submit(1)
    await station.relay().relay_once()
    async with station.consuming(Recorder(say)):
        await eventually(lambda: _waits(platform, job_id))
    await station.relay().relay_once()
    (entry,) = await platform.rows(
        "SELECT extract(epoch FROM available_at - created_at)::float AS s FROM outbox"
    )
    assert entry.s == pytest.approx(capped, abs=0.5)
    sent = [e for call in calls for e in call.parameters.get("Entries", ())]
    assert sent
    assert not [e for e in sent if "DelaySeconds" in e]


async def _waits(platform: Platform, job_id: Any) -> bool:
    return (await platform.statuses(job_id)) == {"RETRY_WAIT": 1}


async def test_an_expired_token_is_waited_out(
    station: Delivery, stub: SqsStub, platform: Platform
) -> None:
    stub.faults.next("SendMessageBatch", TOKEN_EXPIRED, TOKEN_EXPIRED, TOKEN_EXPIRED)
    stub.faults.next("ReceiveMessage", TOKEN_EXPIRED, TOKEN_EXPIRED)
    async with station.dispatching(), station.consuming(Recorder()):
        job_id = await platform.submit(3)
        station.listener.wake()
        await platform.until(job_id, "COMPLETED")
    await platform.check_consistency()


async def test_a_thousand_sends_use_a_handful_of_connections(
    stub: SqsStub, database: Database, database_url: str, sqs_proxy: TcpProxy
) -> None:
    async with sqs_station(
        stub, database, database_url, port=sqs_proxy.port, aws_connections=5, relay_concurrency=2
    ) as station:
        ours = sender(station)
        for start in range(0, 1_000, 20):
            await asyncio.gather(*(ours.send([outgoing(start + n)]) for n in range(20)))
        assert stub.calls["SendMessageBatch"] == 1_000
        assert sqs_proxy.accepted <= 20, "five at a time; an idle one may be closed and replaced"


async def test_no_transaction_is_open_while_sqs_keeps_the_relay_waiting(
    station: Delivery, stub: SqsStub, platform: Platform
) -> None:
    await platform.submit(5)
    stub.faults.next("SendMessageBatch", BlackHole())
    relaying = asyncio.create_task(station.relay().relay_once())
    await eventually(lambda: stub.calls["SendMessageBatch"] == 1)
    open_now = await platform.rows(
        "SELECT query FROM pg_stat_activity WHERE datname = current_database()"
        " AND pid <> pg_backend_pid() AND xact_start IS NOT NULL"
    )
    relaying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await relaying
    assert not open_now


async def test_credentials_that_expire_are_renewed_by_the_client(
    stub: SqsStub, station: Delivery, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A profile whose process gives keys for a minute: every call asks it anew."""
    issued = tmp_path / "issued"
    script = tmp_path / "issue"
    script.write_text(
        "#!/bin/sh\n"
        f"echo x >> {issued}\n"
        "until=$(date -u -d '+60 seconds' +%Y-%m-%dT%H:%M:%SZ)\n"
        'echo "{\\"Version\\":1,\\"AccessKeyId\\":\\"a\\",\\"SecretAccessKey\\":\\"b\\",'
        '\\"SessionToken\\":\\"t\\",\\"Expiration\\":\\"$until\\"}"\n'
    )
    script.chmod(0o755)
    config = tmp_path / "config"
    config.write_text(f"[default]\ncredential_process = {script}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    async with Clients(station.settings).sqs() as client:
        ours = SqsSender(client, queue_url=queue_url(station), limit_bytes=1024)
        await ours.ping()
        first = len(issued.read_text().splitlines())
        await ours.ping()
        assert len(issued.read_text().splitlines()) > first
