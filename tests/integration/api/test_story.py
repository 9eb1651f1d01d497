"""What happened to a job, an input or a correlation id: over HTTP and in a terminal."""

import asyncio
import datetime as dt
from collections.abc import Mapping

import httpx
import pytest

from api import story as command
from infra.database import Database
from infra.queue.protocol import Claim, ClaimedInput
from infra.wakeup import Listener
from schema.kinds import Kind
from schema.outcome import Backoff, Failed, Outcome, Succeeded
from tests.deliveries import Delivery
from tests.integration.api.conftest import Api, Note, notes
from tests.integration.api.stories import run, timeline, told, types
from tests.integration.api.working import Work, by_ordinal, dies, fails, pages, submit, succeeds
from tests.platform import Platform, Recorder, eventually, settings_for

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{TRACE_ID}-00f067aa0ba902b7-01"
PATIENT: Mapping[str, Kind] = {
    "note": Kind("note", Note, "unused:unused", backoff=Backoff(3_600, 3_600))
}


async def test_on_call_finds_which_attempt_failed_where_why_and_when_it_runs_again(
    client: httpx.AsyncClient, database: Database, database_url: str, platform: Platform
) -> None:
    def say(_claim: Claim, input_: ClaimedInput) -> Outcome:
        return Failed("Timeout", "no answer from the bank") if input_.ordinal == 1 else Succeeded()

    headers = {"X-Correlation-Id": "order-42", "traceparent": TRACEPARENT}
    body = notes(3) | {"policy": {"maxAttempts": 2}}
    response = await client.post("/jobs", json=body, headers=headers)
    assert response.headers["X-Correlation-Id"] == "order-42"
    job = response.json()["jobId"]
    settings = settings_for(database_url)
    delivery = Delivery("outbox", settings, database, Listener(settings, name="t"), kinds=PATIENT)
    async with delivery.consuming({"note": Recorder(say)}, worker="consumer-7f3a"):

        async def has_settled() -> bool:
            rows = await platform.rows("SELECT 1 FROM input WHERE settled_at IS NOT NULL")
            return len(rows) == 3

        await eventually(has_settled)

    document = await timeline(client, job, ordinal=1)
    assert (document["status"], document["ordinal"]) == ("RUNNING", 1)
    assert (document["correlationId"], document["traceId"]) == ("order-42", TRACE_ID)
    accepted, started, failed, due = document["items"]
    assert [accepted["type"], started["type"]] == ["job.accepted", "job.started"]
    assert failed["type"] == "attempt.failed"
    assert (failed["attempt"], failed["ordinal"], failed["worker"]) == (1, 1, "consumer-7f3a")
    assert failed["error"] == {"type": "Timeout", "message": "no answer from the bank"}
    assert failed["outcome"] == "RETRY_WAIT"
    assert (due["type"], due["isExpected"]) == ("entry.due", True)
    assert due["at"] == failed["nextAt"] > failed["at"] > started["at"] > accepted["at"]
    waits = dt.datetime.fromisoformat(due["at"]) - dt.datetime.fromisoformat(failed["at"])
    assert due["sinceMs"] == pytest.approx(waits.total_seconds() * 1_000, abs=1)

    by_id = (await client.get("/correlations/order-42")).json()
    assert failed in by_id["items"]
    assert {item["outcome"] for item in by_id["items"] if item["type"] == "input.settled"} == {
        "SUCCEEDED"
    }

    shown = await asyncio.to_thread(run, database_url, job, "--input", "1")
    assert (shown.returncode, shown.stderr) == (0, "")
    again = dt.datetime.fromisoformat(failed["nextAt"])
    whole, by_correlation = await told(database, job), await told(database, "order-42")
    for code, text in ((shown.returncode, shown.stdout), whole, by_correlation):
        assert code == command.TOLD
        assert f"correlation order-42  trace {TRACE_ID}" in text
        (line,) = [line for line in text.splitlines() if "failed" in line]
        assert "attempt 1 failed on consumer-7f3a" in line
        assert "Timeout: no answer from the bank → RETRY_WAIT; again at " in line
        assert f"{again:%Y-%m-%d %H:%M:%S}." in line
        assert "due (expected)" in text.splitlines()[-1]


async def test_a_new_job_has_been_accepted_and_is_due(client: httpx.AsyncClient) -> None:
    job = await submit(client, notes(2))
    document = await timeline(client, job)
    accepted, due = document["items"]
    assert (accepted["type"], accepted["inputs"]) == ("job.accepted", 2)
    assert "sinceMs" not in accepted
    assert (due["type"], due["isExpected"], due["inputs"]) == ("entry.due", False, 2)
    assert (due["ordinal"], due["lastOrdinal"]) == (0, 1)
    assert document["next"] is None


async def test_a_job_that_is_scheduled_and_expires_says_so(client: httpx.AsyncClient) -> None:
    times = {"scheduledFor": "2095-01-01T00:00:00Z", "expiresAt": "2096-01-01T00:00:00Z"}
    document = await timeline(client, await submit(client, notes(1) | times))
    expected = [(item["type"], item["at"]) for item in document["items"] if item["isExpected"]]
    assert expected == [
        ("job.due", times["scheduledFor"]),
        ("entry.due", times["scheduledFor"]),
        ("job.expires", times["expiresAt"]),
    ]


async def test_a_job_cancelled_before_its_time_is_not_due_later(
    client: httpx.AsyncClient, work: Work
) -> None:
    job = await submit(client, notes(2) | {"scheduledFor": "2099-01-01T00:00:00Z"})
    await client.post(f"/jobs/{job}/cancel")
    await work.sweep()
    document = await timeline(client, job)
    assert "job.finished" in types(document)
    assert "job.due" not in types(document)


async def test_what_is_sent_claimed_lapsed_held_or_parked_is_told(
    client: httpx.AsyncClient, work: Work
) -> None:
    job = await submit(client, notes(1))
    await work.rows("UPDATE outbox SET state = 'SENT', sent_at = now() RETURNING id")
    document = await timeline(client, job, ordinal=0)
    assert types(document) == ["job.accepted", "entry.relayed"]
    await work.rows("UPDATE outbox SET state = 'PENDING', sent_at = NULL RETURNING id")
    await work.claim()
    lease = (await timeline(client, job, ordinal=0))["items"][-1]
    assert (lease["type"], lease["worker"], lease["epoch"]) == ("lease.ends", "worker-1", 1)
    assert lease["isExpected"]
    await work.rows("UPDATE outbox SET locked_until = now() - interval '1 second' RETURNING id")
    lapsed = (await timeline(client, job, ordinal=0))["items"]
    assert "lease.lapsed" in [item["type"] for item in lapsed]
    await work.rows(
        "UPDATE outbox SET state = 'PENDING', locked_by = NULL, locked_until = NULL RETURNING id"
    )
    await client.post(f"/jobs/{job}/pause")
    for _ in range(2):  # before the sweep and after it
        held = (await timeline(client, job, ordinal=0))["items"][-1]
        assert (held["type"], held["at"], held["because"]) == ("entry.held", None, "job is PAUSED")
        await work.sweep()
    await work.rows("UPDATE outbox SET state = 'PARKED', parked_reason = 'too big' RETURNING id")
    parked = (await timeline(client, job))["items"][-1]
    assert (parked["type"], parked["because"]) == ("entry.parked", "too big")


async def test_the_life_of_an_input_is_told_across_its_redrive(
    client: httpx.AsyncClient, work: Work, database: Database
) -> None:
    job = await submit(client, notes(2) | {"policy": {"maxAttempts": 2}})
    await work.run(fails)
    document = await timeline(client, job, ordinal=0)
    assert types(document) == [
        "job.accepted",
        "job.started",
        "attempt.failed",
        "attempt.failed",
        "input.died",
        "job.finished",
    ]
    assert len(document["items"][4]["fingerprint"]) == 16
    response = await client.post(f"/jobs/{job}/reprocess", json={"ordinals": [0]})
    assert response.json()["redriven"] == 1
    await work.run(succeeds)
    document = await timeline(client, job, ordinal=0)
    assert types(document)[-3:] == ["redrive.requested", "input.settled", "job.finished"]
    redriven, settled, _ = document["items"][-3:]
    assert redriven["redriveId"] == response.json()["redriveId"]
    assert (redriven["requestedBy"], redriven["inputs"]) == ("acme", 1)
    assert (redriven["outcome"], settled["generation"]) == ("DONE", 1)
    assert (settled["outcome"], settled["attempt"]) == ("SUCCEEDED", 1)
    other = await timeline(client, job, ordinal=1)
    assert "redrive.requested" not in types(other)
    _, text = await told(database, job, ordinal=0)
    assert "redriven by acme: 1 input (DONE)" in text
    assert "SUCCEEDED after a run of 7 ms" in text


async def test_a_large_job_is_summed_up_by_time_outcome_worker_and_cause(
    client: httpx.AsyncClient, work: Work, database: Database
) -> None:
    job = await submit(client, notes(200))
    await work.run(by_ordinal)
    await work.rows(
        "UPDATE input SET settled_at = date_trunc('minute', requested_at)"
        " + (ordinal / 100) * interval '1 minute' FROM job WHERE job.id = job_id RETURNING ordinal"
    )
    found = (await timeline(client, job))["items"]
    succeeded = [item for item in found if item.get("outcome") == "SUCCEEDED"]
    assert [(item["inputs"], item["ordinal"]) for item in succeeded] == [(20, 4), (20, 104)]
    died = [item for item in found if item["type"] == "input.died"]
    assert sum(item["inputs"] for item in died) == 80
    assert len({item["fingerprint"] for item in died}) == 2
    failed = [item for item in found if item["type"] == "attempt.failed"]
    assert {(item["worker"], item["error"]["type"]) for item in failed} == {
        ("worker-1", "Boom"),
        ("worker-1", "Bang"),
        ("worker-1", "NotFound"),
    }
    assert all(item["at"] <= item["untilAt"] for item in failed + died)
    one = await timeline(client, job, ordinal=100)
    assert [item.get("ordinal") for item in one["items"] if "attempt" in item] == [100, 100]
    _, text = await told(database, job)
    assert "20 inputs of 4 to 99: SUCCEEDED" in text
    assert "40 attempts of 0 to 195: failed on worker-1" in text


@pytest.mark.parametrize("many", [30, 200])
async def test_pages_hold_every_step_once_and_in_order(
    client: httpx.AsyncClient, work: Work, many: int
) -> None:
    jobs = [await submit(client, notes(many), **{"X-Correlation-Id": "c"}) for _ in range(2)]
    await work.run(by_ordinal)
    await client.post(f"/jobs/{jobs[0]}/reprocess", json={"ordinals": [0]})
    whole = (await timeline(client, jobs[0], pageSize=500))["items"]
    found = await pages(client, f"/jobs/{jobs[0]}/timeline", pageSize=3)
    assert {len(page) for page in found[:-1]} == {3}
    assert [step for page in found for step in page] == whole
    times = [step["at"] for step in whole if step["at"]]
    assert times == sorted(times)
    both = await pages(client, "/correlations/c", pageSize=4)
    told_of = [step["jobId"] for page in both for step in page]
    assert told_of == sorted(told_of)
    assert set(told_of) == set(jobs)
    assert [step for page in both for step in page if step["jobId"] == jobs[0]] == whole


async def test_a_correlation_of_many_jobs_is_walked_in_bounded_pages(
    client: httpx.AsyncClient, database: Database
) -> None:
    jobs = [await submit(client, notes(1), **{"X-Correlation-Id": "a/b:c"}) for _ in range(23)]
    found = await pages(client, "/correlations/a/b:c", pageSize=500)
    assert [len(page) for page in found] == [20, 20, 6]
    assert [item["jobId"] for page in found for item in page][::2] == jobs
    escaped = await pages(client, "/api/correlations/a%2Fb%3Ac", pageSize=500)
    assert escaped == found
    code, text = await told(database, "a/b:c")
    assert (code, text.count("accepted: 1 input")) == (0, 23)


async def test_errors_cannot_steer_the_terminal(
    client: httpx.AsyncClient, work: Work, database: Database
) -> None:
    job = await submit(client, notes(1))
    await work.run(dies)
    await work.rows("UPDATE attempt SET error_message = E'\\x1b[2Jgone\\r' RETURNING ordinal")
    _, text = await told(database, job)
    assert "Boom: ·[2Jgone· → DLQ" in text


async def test_stories_of_others_are_not_found_but_an_admin_reads_them(api: Api) -> None:
    async with await api.client(owner="acme") as acme:
        job = await submit(acme, notes(1), **{"X-Correlation-Id": "shared"})
    addresses = (f"/jobs/{job}/timeline", "/correlations/shared")
    async with await api.client(owner="zeta") as zeta:
        for address in addresses:
            refused = await zeta.get(address)
            assert refused.status_code == 404
            assert refused.json()["type"] == "urn:haulage:problem:not-found"
        own = await submit(zeta, notes(1), **{"X-Correlation-Id": "shared"})
        found = (await zeta.get(addresses[1])).json()["items"]
        assert {item["jobId"] for item in found} == {own}
    async with await api.client(owner="ops", role="admin") as admin:
        for address in addresses:
            assert job in {item["jobId"] for item in (await admin.get(address)).json()["items"]}


async def test_what_is_not_there_is_a_404_and_what_is_wrong_is_named(
    client: httpx.AsyncClient, database: Database
) -> None:
    job = await submit(client, notes(2))
    missing = (
        "/jobs/J20260110_999999/timeline",
        "/jobs/x/timeline",
        f"/jobs/{job}/timeline?ordinal=2",
        "/correlations/none",
        "/correlations/%00",
        f"/correlations/{'x' * 129}",
    )
    for address in missing:
        assert (await client.get(address)).status_code == 404, address
    for query in ("ordinal=-1", "ordinal=x", "ordinal=1&ordinal=2", "ordinal=9999999999", "x=1"):
        assert (await client.get(f"/jobs/{job}/timeline?{query}")).status_code == 422, query
    cursor = (await timeline(client, job, pageSize=1))["next"]
    for address in (f"/jobs/{job}/timeline?ordinal=0", "/correlations/none?"):
        response = await client.get(f"{address}&after={cursor}")
        assert response.status_code == 400
        assert response.json()["errors"][0]["parameter"] == "after"
    for name, ordinal in (("J20260110_999999", None), (job, 2), ("none", None), ("none", 0)):
        code, text = await told(database, name, ordinal=ordinal)
        assert (code, text[:7]) == (command.NOTHING, "story: "), name
    assert (await told(database, "no correlation id"))[0] == command.NOTHING


def test_the_command_says_that_it_cannot_tell(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://haulage@127.0.0.1:1/haulage")
    assert command.main(["order-42"]) == command.AWAY
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("story: cannot tell: ")
    with pytest.raises(SystemExit, match="2"):
        command.main(["J20260110_000777", "--input", "x"])


async def test_every_row_that_follows_from_a_request_carries_its_correlation_id(
    client: httpx.AsyncClient, work: Work
) -> None:
    job = await submit(client, notes(3), **{"X-Correlation-Id": "c-1", "traceparent": TRACEPARENT})
    claims = await work.claim()
    assert {claim.trace.correlation_id for claim in claims} == {"c-1"}
    await work.settle(claims, lambda input_: fails(input_) if input_.ordinal else dies(input_))
    await client.post(f"/jobs/{job}/reprocess", json={"ordinals": [0]})
    rows = await work.rows("SELECT correlation_id, traceparent FROM outbox")
    assert len(rows) == 2, "the retry and the redrive"
    assert {tuple(row) for row in rows} == {("c-1", TRACEPARENT)}
    await work.run(dies)
    letters = await work.rows("SELECT correlation_id FROM dead_letter")
    assert {row.correlation_id for row in letters} == {"c-1"}
    assert len(letters) == 3
