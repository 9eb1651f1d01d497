# ruff: noqa: RUF001 - digits of other scripts are the point
"""One input over HTTP: all its attempts, across redrives, and what happens next."""

from typing import Any

import httpx
import pytest

from dispatcher.reaper import Reaper
from schema.outcome import Backoff, Skipped
from tests.integration.api.conftest import Api, notes
from tests.integration.api.working import Work, fails, submit, succeeds


async def show(client: httpx.AsyncClient, job: str, ordinal: int = 0) -> dict[str, Any]:
    response = await client.get(f"/jobs/{job}/inputs/{ordinal}")
    assert response.status_code == 200, response.text
    document: dict[str, Any] = response.json()
    return document


def story(document: dict[str, Any]) -> list[tuple[int, int, str, str | None]]:
    """Give generation, number, outcome and the type of the error of each attempt."""
    return [
        (each["generation"], each["number"], each["outcome"], (each["error"] or {}).get("type"))
        for each in document["history"]
    ]


async def test_a_new_input_is_queued_and_has_no_history(client: httpx.AsyncClient) -> None:
    job = await submit(client, notes(2), **{"X-Correlation-Id": "c-1"})
    document = await show(client, job, 1)
    assert document["input"] == {"text": "note 1"}
    assert (document["jobId"], document["ordinal"], document["status"]) == (job, 1, "PENDING")
    assert (document["jobStatus"], document["correlationId"]) == ("SUBMITTED", "c-1")
    assert (document["history"], document["redrive"], document["attempts"]) == ([], None, 0)
    assert document["next"]["action"] == "queued"


async def test_an_input_that_no_consumer_takes_says_what_is_known_of_its_kind(
    client: httpx.AsyncClient, work: Work
) -> None:
    job = await submit(client, notes(1))
    assert "because" not in (await show(client, job))["next"]
    await work.rows("UPDATE outbox SET available_at = now() - interval '31 seconds' RETURNING id")
    queued = (await show(client, job))["next"]
    assert queued["because"] == "no consumer works on kind 'note' now, and none is known to have"
    await work.rows("INSERT INTO kind_pace (kind, input_ms) VALUES ('note', 1) RETURNING kind")
    assert "; one last did at 20" in (await show(client, job))["next"]["because"]
    # Whoever works on another input of the kind may come to this one.
    other = await submit(client, notes(1) | {"priority": 9})
    await work.claim(most=1)
    running, waiting = (await show(client, other))["next"], (await show(client, job))["next"]
    assert (running["action"], waiting) == ("running", {"action": "queued", "at": queued["at"]})


async def test_when_a_kind_was_last_worked_on_is_the_latest_that_is_known(
    client: httpx.AsyncClient, work: Work
) -> None:
    """The pace is measured now and then; the input's own history is not to contradict it."""
    job = await submit(client, notes(2))
    await work.rows(
        "INSERT INTO kind_pace (kind, input_ms, measured_at)"
        " VALUES ('note', 1, now() - interval '1 hour') RETURNING kind"
    )
    await work.settle(await work.claim(), fails)
    await work.rows("UPDATE outbox SET available_at = now() - interval '31 seconds' RETURNING id")
    document = await show(client, job)
    ended_at = document["history"][0]["endedAt"]
    assert document["next"]["because"].endswith(f"one last did at {ended_at}, as far as is known")
    # All of what is kept of one input that never failed: that its job was begun.
    await work.rows("DELETE FROM attempt RETURNING job_id")
    started_at = (await client.get(f"/jobs/{job}")).json()["startedAt"]
    assert f"one last did at {started_at}, " in (await show(client, job))["next"]["because"]


async def test_while_it_runs_the_worker_and_its_lease_are_shown(
    client: httpx.AsyncClient, work: Work
) -> None:
    job = await submit(client, notes(1))
    await work.claim()
    document = await show(client, job)
    assert document["status"] == "RUNNING"
    assert (document["next"]["action"], document["next"]["worker"]) == ("running", "worker-1")
    assert document["next"]["leaseUntil"] > document["next"].get("at", "")


async def test_after_a_failure_the_next_attempt_and_its_time_are_shown(
    client: httpx.AsyncClient, work: Work
) -> None:
    job = await submit(client, notes(1))
    await work.settle(await work.claim(), fails, wait=3_600)
    document = await show(client, job)
    assert document["status"] == "RETRY_WAIT"
    assert document["error"] == {"type": "Timeout", "message": "no answer"}
    assert story(document) == [(0, 1, "RETRY_WAIT", "Timeout")]
    (attempt,) = document["history"]
    assert (attempt["worker"], attempt["elapsedMs"]) == ("worker-1", 7)
    assert attempt["startedAt"] < attempt["endedAt"]
    assert document["next"]["action"] == "retry"
    assert document["next"]["at"] > attempt["endedAt"]
    await client.post(f"/jobs/{job}/pause")
    held = {"action": "held", "because": "job is PAUSED"}
    assert (await show(client, job))["next"] == held
    await work.sweep()
    assert (await show(client, job))["next"] == held
    await client.post(f"/jobs/{job}/cancel")
    ending = {"action": "ending", "because": "job is CANCELLED"}
    assert (await show(client, job))["next"] == ending
    await work.sweep()
    document = await show(client, job)
    assert (document["status"], document["next"]) == ("CANCELLED", None)
    assert document["redrive"]["body"] == {"statuses": ["CANCELLED"], "ordinals": [0]}


async def test_the_whole_life_of_an_input_is_told_across_redrives(
    client: httpx.AsyncClient, work: Work
) -> None:
    job = await submit(client, notes(1) | {"policy": {"maxAttempts": 2}})
    await work.run(fails)
    document = await show(client, job)
    assert (document["status"], document["attempts"], document["next"]) == ("DLQ", 2, None)
    assert document["diedAt"] is not None
    assert len(document["fingerprint"]) == 16
    redrive = document["redrive"]
    response = await client.request(redrive["method"], redrive["href"], json=redrive["body"])
    assert response.json()["redriven"] == 1
    document = await show(client, job)
    assert (document["generation"], document["attempts"], document["status"]) == (1, 0, "PENDING")
    assert (document["error"], document["diedAt"]) == (None, None)
    await work.settle(await work.claim(), fails)
    await work.run(succeeds)
    document = await show(client, job)
    assert story(document) == [
        (0, 1, "RETRY_WAIT", "Timeout"),
        (0, 2, "DLQ", "Timeout"),
        (1, 1, "RETRY_WAIT", "Timeout"),
        (1, 2, "SUCCEEDED", None),
    ]
    assert (document["result"], document["redrive"], document["next"]) == ({"n": 1}, None, None)
    assert document["history"][-1]["endedAt"] == document["settledAt"]


async def test_a_worker_that_vanished_is_told_as_an_attempt(
    client: httpx.AsyncClient, work: Work
) -> None:
    job = await submit(client, notes(1))
    await work.claim()
    await work.rows("UPDATE outbox SET locked_until = now() - interval '1 second' RETURNING id")
    document = await show(client, job)
    assert (document["status"], document["next"]["action"]) == ("PENDING", "lapsed")
    reaper = Reaper(
        work.database,
        lease_seconds=30,
        backoffs={"note": Backoff(0, 0)},
        most=10,
        wake=lambda: None,
        tell=lambda: None,
    )
    await reaper.once()
    document = await show(client, job)
    assert story(document) == [(0, 1, "WORKER_LOST", "WorkerLost")]
    assert document["history"][0]["startedAt"] is None or document["history"][0]["elapsedMs"]


async def test_what_was_skipped_ends_its_story(client: httpx.AsyncClient, work: Work) -> None:
    job = await submit(client, notes(1))
    await work.run(lambda _: Skipped("nothing to do"))
    document = await show(client, job)
    assert story(document) == [(0, 1, "SKIPPED", None)]
    assert (document["error"], document["reason"]) == (None, "nothing to do")


@pytest.mark.parametrize(
    "ordinal", ["1", "-1", "x", "00", "2147483648", "9223372036854775808", "9" * 500, "%00", "٠"]
)
async def test_what_is_no_input_is_not_found(client: httpx.AsyncClient, ordinal: str) -> None:
    job = await submit(client, notes(1))
    for address in (f"/jobs/{job}/inputs/{ordinal}", f"/jobs/J20260110_999999/inputs/{ordinal}"):
        response = await client.get(address)
        assert response.status_code == 404
        assert response.json()["type"] == "urn:haulage:problem:not-found"


async def test_another_owners_input_is_not_found_but_an_admin_sees_it(api: Api) -> None:
    async with await api.client(owner="acme") as acme:
        job = await submit(acme, notes(1))
    async with await api.client(owner="zeta") as zeta:
        assert (await zeta.get(f"/jobs/{job}/inputs/0")).status_code == 404
    async with await api.client(owner="ops", role="admin") as admin:
        assert (await show(admin, job))["owner"] == "acme"
