"""Pause, resume and cancel over HTTP: what they answer, and what they leave when they race."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import httpx
import pytest
from structlog.testing import capture_logs

from infra.wakeup import Listener, Notifier
from tests.integration.api.conftest import ABC, Api, application, notes
from tests.integration.api.working import Work, dies, submit, succeeds
from tests.platform import Platform, settings_for


async def post(client: httpx.AsyncClient, address: str) -> tuple[int, Any]:
    response = await client.post(address)
    return response.status_code, response.json()


def moved(job: str, status: str, before: str) -> tuple[int, dict[str, str]]:
    return 200, {"jobId": job, "status": status, "previousStatus": before}


async def test_a_job_is_paused_resumed_and_cancelled_and_asking_again_changes_nothing(
    client: httpx.AsyncClient, work: Work
) -> None:
    job = await submit(client, notes(3))
    assert await post(client, f"/jobs/{job}/resume") == moved(job, "SUBMITTED", "SUBMITTED")
    assert await post(client, f"/jobs/{job}/pause") == moved(job, "PAUSED", "SUBMITTED")
    assert await post(client, f"/api/jobs/{job}/pause") == moved(job, "PAUSED", "PAUSED")
    assert await work.claim() == []
    assert await post(client, f"/jobs/{job}/resume") == moved(job, "RUNNING", "PAUSED")
    assert await post(client, f"/jobs/{job}/resume") == moved(job, "RUNNING", "RUNNING")
    assert await post(client, f"/jobs/{job}/cancel") == moved(job, "CANCELLED", "RUNNING")
    assert await post(client, f"/jobs/{job}/cancel") == moved(job, "CANCELLED", "CANCELLED")
    await work.sweep()
    document = (await client.get(f"/jobs/{job}")).json()
    assert (document["status"], document["counts"]["cancelled"]) == ("CANCELLED", 3)
    assert document["finishedAt"] is not None


@pytest.mark.parametrize(
    ("say", "status", "move", "participle"),
    [
        (succeeds, "COMPLETED", "pause", "paused"),
        (succeeds, "COMPLETED", "resume", "resumed"),
        (succeeds, "COMPLETED", "cancel", "cancelled"),
        (dies, "FAILED", "pause", "paused"),
        (dies, "FAILED", "cancel", "cancelled"),
    ],
)
async def test_a_move_that_the_lifecycle_forbids_is_a_409_that_names_the_status(
    client: httpx.AsyncClient, work: Work, say: Any, status: str, move: str, participle: str
) -> None:
    job = await submit(client, notes(2))
    await work.run(say)
    response = await client.post(f"/jobs/{job}/{move}")
    assert response.status_code == 409
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert problem["type"] == "urn:haulage:problem:conflict"
    assert problem["detail"] == f"the job is {status}: it cannot be {participle}"
    assert (problem["jobId"], problem["jobStatus"]) == (job, status)


async def test_only_the_owner_and_an_admin_move_a_job(api: Api) -> None:
    async with await api.client(owner="acme") as acme:
        job = await submit(acme, notes(1))
    async with await api.client(owner="zeta") as zeta:
        for move in ("pause", "resume", "cancel", "reprocess"):
            assert (await zeta.post(f"/jobs/{job}/{move}")).status_code == 404
            assert (await zeta.post(f"/jobs/J20260110_000777/{move}")).status_code == 404
    async with await api.client(owner="ops", role="admin") as admin:
        assert (await post(admin, f"/jobs/{job}/pause"))[1]["status"] == "PAUSED"


@pytest.mark.parametrize(
    ("query", "body", "status"),
    [("?x=1", "", 422), ("", '{"reason":"x"}', 422), ("", "[]", 422), ("", "{", 400),
     ("", "{}", 200)],
)  # fmt: skip
async def test_nothing_that_is_not_understood_is_accepted(
    client: httpx.AsyncClient, query: str, body: str, status: int
) -> None:
    job = await submit(client, notes(1))
    headers = {"Content-Type": "application/json"}
    response = await client.post(f"/jobs/{job}/pause{query}", content=body, headers=headers)
    assert response.status_code == status
    document = (await client.get(f"/jobs/{job}")).json()
    assert document["status"] == ("PAUSED" if status == 200 else "SUBMITTED")


async def test_resuming_ends_a_job_whose_last_input_was_done_while_it_was_paused(
    client: httpx.AsyncClient, work: Work
) -> None:
    job = await submit(client, notes(2))
    claims = await work.claim()
    await client.post(f"/jobs/{job}/pause")
    await work.settle(claims, succeeds)
    assert (await client.get(f"/jobs/{job}")).json()["status"] == "PAUSED"
    assert await post(client, f"/jobs/{job}/resume") == moved(job, "COMPLETED", "PAUSED")


async def test_a_job_of_any_size_answers_at_once_and_is_swept_behind(
    client: httpx.AsyncClient, work: Work
) -> None:
    job = await submit(client, notes(1_000))
    await client.post(f"/jobs/{job}/cancel")
    (row,) = await work.rows("SELECT status, cancelled, sweeping FROM job")
    assert tuple(row) == ("CANCELLED", 0, True)
    await work.sweep()
    (row,) = await work.rows("SELECT cancelled FROM job")
    assert row.cancelled == 1_000


class Heard(NamedTuple):
    """A client of an application that wakes others, and what one who listens hears of it."""

    client: httpx.AsyncClient
    woken: asyncio.Event
    controlled: asyncio.Event


@pytest.fixture
async def heard(api: Api, work: Work, database_url: str) -> AsyncIterator[Heard]:
    settings = settings_for(database_url)
    listener, notifier = Listener(settings, name="test"), Notifier(work.database, enabled=True)
    woken, controlled = listener.wakes(), listener.controls()
    app = application(work.database, database_url, notifier=notifier)
    async with await Api(app, api.add_key).client() as client, asyncio.TaskGroup() as group:
        side = [group.create_task(each.run()) for each in (listener, notifier)]
        yield Heard(client, woken, controlled)
        for task in side:
            task.cancel()


async def test_a_move_wakes_those_who_listen_after_it_is_committed(
    heard: Heard,
) -> None:
    client, _, controlled = heard
    job = await submit(client, notes(1))
    async with asyncio.timeout(20):
        # What the listener tells at its start comes first.
        await controlled.wait()
        controlled.clear()
        await client.post(f"/jobs/{job}/pause")
        await controlled.wait()


async def test_who_listens_hears_of_each_submission_however_it_is_stored(
    heard: Heard,
) -> None:
    """One goes along with its commit, one that follows at once does not, a large one never."""
    client, woken, _ = heard
    async with asyncio.timeout(20):
        # What the listener tells at its start comes first.
        await woken.wait()
        for many in (1, 1, 1, 60, 60):
            woken.clear()
            await submit(client, notes(many))
            await woken.wait()


async def test_a_wake_up_that_postgres_does_not_take_costs_no_job(
    api: Api, work: Work, database_url: str
) -> None:
    """Its queue of notifications is full where somebody listens and never hears."""
    await work.rows("CREATE SEQUENCE tries")
    await work.rows(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN IF nextval(''tries'') = 1 THEN"
        " RAISE EXCEPTION ''too many notifications'' USING ERRCODE = ''54000'';"
        " END IF; RETURN NEW; END'"
    )
    await work.rows(
        "CREATE TRIGGER refuse BEFORE INSERT ON job FOR EACH ROW EXECUTE FUNCTION refuse()"
    )
    app = application(work.database, database_url, notifier=Notifier(work.database, enabled=True))
    async with await Api(app, api.add_key).client() as client:
        assert (await client.post("/jobs", json=notes(1))).status_code == 202
    assert len(await work.rows("SELECT FROM job")) == 1


async def test_the_log_says_what_a_move_found_and_left(client: httpx.AsyncClient) -> None:
    job = await submit(client, {"inputs": [ABC]})
    with capture_logs() as events:
        await client.post(f"/jobs/{job}/pause", headers={"X-Correlation-Id": "c-1"})
    (event,) = [event for event in events if event["event"] == "http.request"]
    assert event["route"] == "/jobs/{jobId}/pause"
    assert (event["job"], event["owner"], event["status"]) == (job, "acme", 200)
    assert (event["status_before"], event["status_after"]) == ("SUBMITTED", "PAUSED")


@pytest.mark.parametrize("moves", [("pause", "resume"), ("pause", "resume", "cancel")])
async def test_twenty_parallel_moves_leave_one_consistent_result(
    client: httpx.AsyncClient, work: Work, platform: Platform, moves: tuple[str, ...]
) -> None:
    job = await submit(client, notes(300))
    begun = await work.claim(most=1)
    async with asyncio.TaskGroup() as group:
        posts = [
            group.create_task(client.post(f"/jobs/{job}/{moves[number % len(moves)]}"))
            for number in range(20)
        ]
        group.create_task(work.settle(begun, succeeds))
        group.create_task(work.sweep())
    answers = [each.result() for each in posts]
    assert {answer.status_code for answer in answers} <= {200, 409}
    for answer in answers:
        if answer.status_code == 409:
            assert "cancel" in moves
            assert answer.json()["jobStatus"] == "CANCELLED"
    await work.sweep()
    document = (await client.get(f"/jobs/{job}")).json()
    assert sum(document["counts"].values()) == document["total"] == 300
    if "cancel" in moves:
        assert document["status"] == "CANCELLED"
        assert document["pending"] == 0
        assert not await work.rows("SELECT id FROM outbox")
        changed = [answer for answer in answers if answer.json().get("status") == "CANCELLED"]
        assert sum(each.json()["previousStatus"] != "CANCELLED" for each in changed) == 1
    else:
        await client.post(f"/jobs/{job}/resume")
        await work.sweep()
        await work.run(succeeds)
        assert (await client.get(f"/jobs/{job}")).json()["status"] == "COMPLETED"
    await platform.check_consistency()
