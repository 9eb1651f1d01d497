"""Taking inputs back into work over HTTP: which go, how it is answered, who may."""

import asyncio
from typing import Any

import httpx
import pytest

from tests.integration.api.conftest import Api, notes
from tests.integration.api.working import Work, by_ordinal, dies, errors, submit, succeeds
from tests.platform import Platform


async def redriven(client: httpx.AsyncClient, job: str, body: dict[str, Any]) -> tuple[int, int]:
    """Reprocess, after a dry run that must say the same: how many matched, and how many went."""
    dry = await client.post(f"/jobs/{job}/reprocess", json=body | {"dryRun": True})
    assert dry.status_code == 200, dry.text
    response = await client.post(f"/jobs/{job}/reprocess", json=body)
    assert response.status_code == 202, response.text
    answer = response.json()
    assert dry.json() == {"dryRun": True, "jobId": job, "matched": answer["matched"]}
    assert answer["jobId"] == job
    assert response.headers["location"] == answer["links"]["self"]
    return answer["matched"], answer["redriven"]


async def test_what_gave_up_or_was_not_found_goes_back_into_work(
    client: httpx.AsyncClient, work: Work, platform: Platform
) -> None:
    job = await submit(client, notes(10))
    await work.run(by_ordinal)
    before = (await client.get(f"/jobs/{job}")).json()
    assert (before["status"], before["failed"]) == ("FAILED", 6)
    assert await redriven(client, job, {}) == (6, 6)
    document = (await client.get(f"/jobs/{job}")).json()
    assert (document["status"], document["pending"], document["failed"]) == ("RUNNING", 6, 0)
    assert document["finishedAt"] is None
    await platform.check_consistency()
    await work.run(succeeds)
    document = (await client.get(f"/jobs/{job}")).json()
    assert (document["status"], document["done"]) == ("COMPLETED", 10)
    assert await redriven(client, job, {}) == (0, 0)
    await platform.check_consistency()


async def test_statuses_and_ordinals_narrow_what_goes(
    client: httpx.AsyncClient, work: Work
) -> None:
    job = await submit(client, notes(15))
    await work.run(by_ordinal)
    assert await redriven(client, job, {"statuses": ["NOT_FOUND"]}) == (3, 3)
    named = {"ordinals": [0, 0, 1, 3, 4, 99, 2**31 - 1]}
    assert await redriven(client, job, {"statuses": ["DLQ"], **named}) == (1, 1)
    assert await redriven(client, job, {"statuses": ["CANCELLED", "EXPIRED"]}) == (0, 0)
    assert await redriven(client, job, {"ordinals": [2, 5]}) == (2, 2)


async def test_what_a_cancel_ended_can_be_taken_back(client: httpx.AsyncClient, work: Work) -> None:
    job = await submit(client, notes(4))
    await client.post(f"/jobs/{job}/cancel")
    await work.sweep()
    assert await redriven(client, job, {}) == (0, 0)
    assert await redriven(client, job, {"statuses": ["CANCELLED"]}) == (4, 4)
    await work.run(succeeds)
    assert (await client.get(f"/jobs/{job}")).json()["status"] == "COMPLETED"


async def test_a_large_redrive_is_answered_after_its_first_batch_and_shows_its_progress(
    api: Api, client: httpx.AsyncClient, work: Work, platform: Platform
) -> None:
    job = await submit(client, notes(1_000))
    await work.run(dies)
    other = await submit(client, notes(700))
    await work.run(dies)
    response = await client.post("/dlq/reprocess", json={"all": True})
    answer = response.json()
    assert response.status_code == 202
    assert (answer["matched"], answer["redriven"]) == (1_700, 1_000)
    assert (answer["status"], answer["jobId"]) == ("RUNNING", None)
    shown = (await client.get(response.headers["location"])).json()
    assert (shown["status"], shown["redriven"], shown["finishedAt"]) == ("RUNNING", 1_000, None)
    await work.redrive()
    shown = (await client.get(response.headers["location"])).json()
    assert (shown["status"], shown["matched"], shown["redriven"]) == ("DONE", 1_700, 1_700)
    assert (shown["requestedBy"], shown["owner"]) == ("acme", "acme")
    assert shown["finishedAt"] is not None
    await platform.check_consistency()
    await work.run(succeeds)
    for each in (job, other):
        assert (await client.get(f"/jobs/{each}")).json()["status"] == "COMPLETED"
    async with await api.client(owner="zeta") as zeta:
        assert (await zeta.get(response.headers["location"])).status_code == 404
    async with await api.client(owner="ops", role="admin") as admin:
        assert (await admin.get(response.headers["location"])).json() == shown


async def test_a_redrive_of_one_job_is_shown_in_the_words_of_the_api(
    client: httpx.AsyncClient, work: Work
) -> None:
    job = await submit(client, notes(5))
    await work.run(dies)
    body = {"statuses": ["DLQ"], "ordinals": [1, 3, 7]}
    accepted = (await client.post(f"/api/jobs/{job}/reprocess", json=body)).json()
    assert accepted["links"]["self"] == f"/api/redrives/{accepted['redriveId']}"
    shown = (await client.get(accepted["links"]["self"])).json()
    assert shown["jobId"] == job
    assert shown["filter"] == {"jobId": job, "statuses": ["DLQ"], "ordinals": 3}
    assert (shown["matched"], shown["redriven"], shown["stoppedReason"]) == (2, 2, None)


@pytest.mark.parametrize(
    "redrive",
    ["x", "7", "01912d68-783e-7a03-8467-5661c1243ad4", "01912D68-783E-7A03-8467-5661C1243AD4"],
)
async def test_what_is_no_redrive_is_not_found(client: httpx.AsyncClient, redrive: str) -> None:
    assert (await client.get(f"/redrives/{redrive}")).status_code == 404


async def test_one_dead_letter_is_taken_back_once_however_often_it_is_asked_for(
    client: httpx.AsyncClient, work: Work, platform: Platform
) -> None:
    job = await submit(client, notes(3))
    await work.run(dies)
    async with asyncio.TaskGroup() as group:
        posts = [group.create_task(client.post(f"/dlq/{job}/1/reprocess")) for _ in range(20)]
    answers = [each.result() for each in posts]
    assert {answer.status_code for answer in answers} <= {202, 404}
    accepted = [answer.json() for answer in answers if answer.status_code == 202]
    assert sum(each["redriven"] for each in accepted) == 1
    (row,) = await work.rows("SELECT generation, status FROM input WHERE ordinal = 1")
    assert tuple(row) == (1, "PENDING")
    await platform.check_consistency()
    assert (await client.post(f"/dlq/{job}/1/reprocess")).status_code == 404
    assert (await client.post(f"/dlq/{job}/9/reprocess")).status_code == 404


async def test_parallel_redrives_and_moves_leave_one_consistent_result(
    client: httpx.AsyncClient, work: Work, platform: Platform
) -> None:
    job = await submit(client, notes(200))
    await work.run(dies)
    addresses = ["reprocess", "pause", "resume", "reprocess", "cancel"]
    async with asyncio.TaskGroup() as group:
        posts = [
            group.create_task(client.post(f"/jobs/{job}/{addresses[number % 5]}"))
            for number in range(20)
        ]
    answers = [each.result() for each in posts]
    assert {answer.status_code for answer in answers} <= {200, 202, 409}
    await work.redrive()
    await work.sweep()
    document = (await client.get(f"/jobs/{job}")).json()
    assert sum(document["counts"].values()) == document["total"] == 200
    await client.post(f"/jobs/{job}/resume")
    await client.post(f"/jobs/{job}/reprocess", json={"statuses": ["DLQ", "CANCELLED"]})
    await work.redrive()
    await work.sweep()
    await work.run(succeeds)
    assert (await client.get(f"/jobs/{job}")).json()["status"] == "COMPLETED"
    await platform.check_consistency()
    await platform.check_all_done()


@pytest.mark.parametrize(
    ("body", "places"),
    [
        ({}, [""]),
        ({"dryRun": True}, [""]),
        ({"all": False}, [""]),
        ({"all": True, "kind": "note"}, ["/all"]),
        ({"all": True, "errorClass": "Boom"}, ["/all"]),
        ({"fingerprint": "nothex"}, ["/fingerprint"]),
    ],
)
async def test_a_redrive_over_the_dlq_must_say_what_it_means(
    client: httpx.AsyncClient, work: Work, body: dict[str, Any], places: list[str]
) -> None:
    await submit(client, notes(1))
    await work.run(dies)
    response = await client.post("/dlq/reprocess", json=body)
    assert response.status_code == 422
    assert errors(response) == places
    assert not await work.rows("SELECT id FROM redrive")


async def test_a_filter_takes_back_what_matches_and_no_more(
    api: Api, client: httpx.AsyncClient, work: Work
) -> None:
    job, other = await submit(client, notes(10)), await submit(client, notes(5))
    async with await api.client(owner="zeta") as zeta:
        foreign = await submit(zeta, notes(5))
    await work.run(by_ordinal)
    (boom,) = {
        item["fingerprint"]
        for item in (await client.get("/dlq", params={"jobId": job})).json()["items"]
        if item["error"]["type"] == "Boom"
    }

    async def matched(**body: Any) -> int:
        dry = await client.post("/dlq/reprocess", json=body | {"dryRun": True})
        assert dry.status_code == 200, dry.text
        return int(dry.json()["matched"])

    assert await matched(all=True) == 6
    assert await matched(kind="export") == 0
    assert await matched(kind="note", fingerprint=boom) == 3
    assert await matched(diedFrom="2096-01-01T00:00:00Z") == 0
    assert await matched(jobId=other) == 2
    assert await matched(errorClass="Bang", kind="note") == 3
    response = await client.post("/dlq/reprocess", json={"fingerprint": boom, "jobId": job})
    assert (response.json()["jobId"], response.json()["redriven"]) == (job, 2)
    assert await matched(all=True) == 4
    response = await client.post("/dlq/reprocess", json={"errorClass": "Bang", "jobId": job})
    assert (response.json()["matched"], response.json()["redriven"]) == (2, 2)
    shown = (await client.get(response.headers["location"])).json()
    assert (shown["filter"], shown["redriven"]) == ({"jobId": job, "errorClass": "Bang"}, 2)
    assert await matched(all=True) == 2
    for body, status in ({"jobId": foreign}, 404), ({"owner": "zeta"}, 403):
        assert (await client.post("/dlq/reprocess", json=body)).status_code == status
    async with await api.client(owner="ops", role="admin") as admin:
        assert (await admin.post("/dlq/reprocess", json={"owner": "none"})).status_code == 422
        response = await admin.post("/dlq/reprocess", json={"owner": "zeta"})
        assert response.json()["redriven"] == 2
        assert (await admin.get(response.headers["location"])).json()["owner"] == "zeta"


async def test_the_inputs_of_a_pruned_job_are_gone(client: httpx.AsyncClient, work: Work) -> None:
    job = await submit(client, notes(1))
    await work.run(dies)
    await work.rows("UPDATE job SET pruned_at = now() RETURNING id")
    response = await client.post(f"/jobs/{job}/reprocess")
    assert response.status_code == 409
    assert "removed" in response.json()["detail"]
    document = (await client.get(f"/jobs/{job}")).json()
    assert (document["status"], document["dataContent"]) == ("FAILED", None)
    assert "removed" in document["dataContentOmitted"]["reason"]
