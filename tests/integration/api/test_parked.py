"""What could not be delivered, over HTTP: for admin keys only."""

import json
from collections.abc import AsyncIterator
from uuid import UUID

import httpx
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from infra.database import Database
from tests.integration.api.conftest import Api, notes
from tests.integration.api.working import Work, errors, pages, submit


@pytest.fixture
async def admin(api: Api) -> AsyncIterator[httpx.AsyncClient]:
    async with await api.client(owner="ops", role="admin") as client:
        yield client


async def park_message(
    work: Work, name: str, *, entry_id: int | None = None, job_id: UUID | None = None
) -> int:
    (row,) = await work.rows(
        "INSERT INTO parked_message (queue, message_id, reason, body, attributes, entry_id, job_id,"
        " receive_count) VALUES ('dlq', :name, 'received too often', :body,"
        " CAST(:attributes AS jsonb), CAST(:entry_id AS bigint), CAST(:job_id AS uuid), 21)"
        " RETURNING id",
        name=name,
        body='{"v":1}',
        attributes=json.dumps({"correlation_id": "c-1"}),
        entry_id=entry_id,
        job_id=job_id,
    )
    return int(row.id)


async def park_entry(work: Work, job: str) -> int:
    (row,) = await work.rows(
        "UPDATE outbox SET state = 'PARKED', parked_reason = 'too large' WHERE job_id ="
        " (SELECT id FROM job WHERE key = :job) RETURNING id",
        job=job,
    )
    return int(row.id)


async def test_open_messages_come_first_then_entries_then_resolved_messages(
    admin: httpx.AsyncClient, work: Work
) -> None:
    jobs = [await submit(admin, notes(1)) for _ in range(2)]
    entries = [await park_entry(work, job) for job in jobs]
    messages = [await park_message(work, f"m-{number}") for number in range(5)]
    for closed in (messages[0], messages[3]):
        assert (await admin.post(f"/parked/messages/{closed}/dismiss")).status_code == 200
    expected = [
        *(("message", messages[n], True) for n in (1, 2, 4)),
        *(("entry", entry, True) for entry in entries),
        *(("message", messages[n], False) for n in (0, 3)),
    ]
    for page_size in (1, 2, 3, 5, 100):
        found = await pages(admin, "/parked", pageSize=page_size)
        assert all(len(page) <= page_size for page in found)
        items = [item for page in found for item in page]
        assert [(item["type"], item["id"], item["isOpen"]) for item in items] == expected
    assert items[0]["attributes"] == {"correlation_id": "c-1"}
    assert (items[0]["reason"], items[0]["receiveCount"]) == ("received too often", 21)
    assert (items[3]["jobId"], items[3]["reason"]) == (jobs[0], "too large")
    assert (items[-1]["resolution"], items[-1]["resolvedAt"] is None) == ("dismissed", False)


async def test_a_parked_entry_is_made_due_again_once(admin: httpx.AsyncClient, work: Work) -> None:
    job = await submit(admin, notes(2))
    entry = await park_entry(work, job)
    step = (await admin.get(f"/jobs/{job}/inputs/0")).json()["next"]
    assert step == {"action": "parked", "because": "too large"}
    response = await admin.post(f"/parked/entries/{entry}/reprocess")
    assert (response.status_code, response.json()) == (202, {"id": entry, "state": "PENDING"})
    assert (await admin.post(f"/parked/entries/{entry}/reprocess")).status_code == 404
    assert len(await work.claim()) == 1


async def test_parked_entries_are_made_due_again_by_what_they_have_in_common(
    admin: httpx.AsyncClient, work: Work
) -> None:
    jobs = [await submit(admin, notes(1)) for _ in range(4)]
    for job in jobs:
        await park_entry(work, job)
    other = "UPDATE outbox SET parked_reason = 'InvalidParameterValue: odd' WHERE job_id <> (SELECT"
    await work.rows(f"{other} id FROM job WHERE key = :job) RETURNING id", job=jobs[0])
    await admin.post(f"/jobs/{jobs[1]}/pause")

    async def asked(**body: object) -> tuple[int, object]:
        response = await admin.post("/parked/entries/reprocess", json=body)
        return response.status_code, response.json()

    assert await asked(reason="ParameterValue", dryRun=True) == (
        200,
        {"dryRun": True, "matched": 3},
    )
    assert await asked(jobId=jobs[2]) == (202, {"released": 1, "remaining": 0})
    assert await asked(kind="nothing") == (202, {"released": 0, "remaining": 0})
    assert await asked(reason="ParameterValue", entryType="inputs") == (
        202,
        {"released": 2, "remaining": 0},
    )
    states = await work.rows("SELECT state FROM outbox ORDER BY id")
    assert [row.state for row in states] == ["PARKED", "HELD", "PENDING", "PENDING"]
    assert await asked(all=True) == (202, {"released": 1, "remaining": 0})


async def test_an_entry_whose_job_somebody_holds_does_not_hold_up_the_others(
    admin: httpx.AsyncClient, work: Work, database: Database
) -> None:
    jobs = [await submit(admin, notes(1)) for _ in range(2)]
    for job in jobs:
        await park_entry(work, job)

    async def unit(connection: AsyncConnection) -> httpx.Response:
        await connection.execute(
            text("SELECT FROM job WHERE key = :job FOR UPDATE"), {"job": jobs[0]}
        )
        return await admin.post("/parked/entries/reprocess", json={"all": True})

    response = await database.run(unit)
    assert response.json() == {"released": 1, "remaining": 1}


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, ""),
        ({"all": True, "kind": "note"}, "/all"),
        ({"entryType": "x"}, "/entryType"),
        ({"reason": ""}, "/reason"),
        ({"state": "PARKED"}, "/state"),
    ],
)
async def test_which_entries_is_said_and_said_well(
    admin: httpx.AsyncClient, body: dict[str, object], pointer: str
) -> None:
    response = await admin.post("/parked/entries/reprocess", json=body)
    assert response.status_code == 422
    assert pointer in errors(response)


async def test_the_entries_of_a_job_that_is_not_there_are_not_found(
    admin: httpx.AsyncClient,
) -> None:
    body = {"jobId": "J20260101_000001"}
    assert (await admin.post("/parked/entries/reprocess", json=body)).status_code == 404


async def test_the_entry_of_a_paused_job_is_held(admin: httpx.AsyncClient, work: Work) -> None:
    job = await submit(admin, notes(2))
    entry = await park_entry(work, job)
    await admin.post(f"/jobs/{job}/pause")
    response = await admin.post(f"/parked/entries/{entry}/reprocess")
    assert response.json() == {"id": entry, "state": "HELD"}


async def test_a_message_is_resolved_by_the_truth_about_its_entry(
    admin: httpx.AsyncClient, work: Work
) -> None:
    job = await submit(admin, notes(1))
    entry = await park_entry(work, job)
    (row,) = await work.rows("SELECT id FROM job")
    message = await park_message(work, "m-1", entry_id=entry, job_id=row.id)
    settled = await park_message(work, "m-2", entry_id=10**12, job_id=row.id)
    for each, resolution in (message, "requeued"), (settled, "settled"):
        response = await admin.post(f"/parked/messages/{each}/reprocess")
        assert (response.status_code, response.json()["resolution"]) == (202, resolution)
        again = await admin.post(f"/parked/messages/{each}/reprocess")
        assert again.status_code == 409
        assert resolution in again.json()["detail"]
    assert len(await work.claim()) == 1


async def test_a_message_that_names_no_entry_can_only_be_dismissed(
    admin: httpx.AsyncClient, work: Work
) -> None:
    message = await park_message(work, "m-1")
    response = await admin.post(f"/parked/messages/{message}/reprocess")
    assert response.status_code == 409
    assert "dismissed" in response.json()["detail"]
    dismissed = await admin.post(f"/parked/messages/{message}/dismiss")
    assert dismissed.json() == {"id": message, "resolution": "dismissed"}
    assert (await admin.post(f"/parked/messages/{message}/dismiss")).status_code == 409


@pytest.mark.parametrize("name", ["0", "7", "-1", "x", "9223372036854775808", "%00"])
async def test_what_is_not_parked_is_not_found(admin: httpx.AsyncClient, name: str) -> None:
    for address in ("messages/{}/reprocess", "messages/{}/dismiss", "entries/{}/reprocess"):
        assert (await admin.post(f"/parked/{address.format(name)}")).status_code == 404


async def test_parked_things_are_for_admins(client: httpx.AsyncClient, work: Work) -> None:
    message, entry = (
        await park_message(work, "m-1"),
        await park_entry(work, await submit(client, notes(1))),
    )
    assert (await client.get("/parked")).status_code == 403
    for address in (
        f"messages/{message}/reprocess",
        f"messages/{message}/dismiss",
        f"entries/{entry}/reprocess",
        "messages/999/reprocess",
        "entries/reprocess",
    ):
        response = await client.post(f"/parked/{address}")
        assert response.status_code == 403
        assert response.json()["type"] == "urn:haulage:problem:forbidden"
    assert len(await work.rows("SELECT id FROM parked_message WHERE resolved_at IS NULL")) == 1


async def test_bad_cursors_and_parameters_are_named(admin: httpx.AsyncClient, work: Work) -> None:
    for number in range(2):
        await park_message(work, f"m-{number}")
    cursor = (await admin.get("/parked?pageSize=1")).json()["next"]
    for after in ("1", cursor + "A", "", (await admin.get("/jobs")).json()["next"] or "x"):
        assert (await admin.get("/parked", params={"after": after})).status_code == 400
    response = await admin.get("/parked?state=open&pageSize=0")
    assert response.status_code == 422
    assert sorted(errors(response)) == ["pageSize", "state"]
