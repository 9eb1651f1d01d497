# ruff: noqa: RUF001 - digits of other scripts are the point
import json
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from infra.database import Database
from tests.integration.api.conftest import ABC, Api, notes
from tests.integration.api.working import pages, submit

CURSORS = ["1", "bm8", "!", "", "x" * 500, "é"]


async def test_a_new_job_shows_as_the_contract_says(client: httpx.AsyncClient) -> None:
    other = {**ABC, "indexKey": "XYZ"}
    job = await submit(client, {"inputs": [ABC, other]})
    document = (await client.get(f"/jobs/{job}")).json()
    contract = {
        "jobId": job,
        "status": "SUBMITTED",
        "total": 2,
        "pending": 2,
        "running": 0,
        "done": 0,
        "failed": 0,
        "filesGenerated": 0,
        "filesReused": 0,
        "errorMessage": None,
        "dataContent": [
            {**ABC, "s3Path": None, "status": "PENDING"},
            {**other, "s3Path": None, "status": "PENDING"},
        ],
    }
    assert list(document)[: len(contract)] == list(contract)
    assert {name: document[name] for name in contract} == contract
    assert list(document["dataContent"][0])[:4] == [*ABC, "s3Path"]


async def test_counts_follow_the_counters_and_the_live_leases(
    client: httpx.AsyncClient, database: Database
) -> None:
    job = await submit(client, notes(20))
    await database.fetch(
        text(
            "UPDATE job SET status = 'RUNNING', started_at = now(), succeeded = 3, skipped = 2,"
            " not_found = 1, dlq = 2, cancelled = 1, error_message = 'broke'"
        )
    )
    await database.fetch(
        text(
            "UPDATE outbox SET state = 'CLAIMED', locked_by = 'w', unfinished = 7,"
            " locked_until = now() + interval '1 minute'"
        )
    )
    document = (await client.get(f"/jobs/{job}")).json()
    assert (document["done"], document["failed"], document["running"]) == (5, 3, 7)
    assert document["pending"] == 4
    assert sum(document["counts"].values()) == document["total"] == 20
    assert document["errorMessage"] == "broke"
    await database.fetch(text("UPDATE outbox SET locked_until = now() - interval '1 second'"))
    document = (await client.get(f"/jobs/{job}")).json()
    assert (document["running"], document["pending"]) == (0, 11)


async def test_a_finished_file_shows_where_it_is_and_a_dead_one_why(
    client: httpx.AsyncClient, database: Database
) -> None:
    job = await submit(client, {"inputs": [ABC, {**ABC, "indexKey": "B"}]})
    await database.fetch(
        text(
            "UPDATE input SET entry_id = NULL, settled_at = now(), status = CASE ordinal"
            " WHEN 0 THEN 'SUCCEEDED' ELSE 'DLQ' END, reused = CASE ordinal WHEN 0 THEN false END,"
            ' result = CASE ordinal WHEN 0 THEN CAST(\'{"s3Path": "s3://b/k"}\' AS jsonb) END,'
            " error_class = CASE ordinal WHEN 1 THEN 'Boom' END,"
            " error_message = CASE ordinal WHEN 1 THEN 'it broke' END"
        )
    )
    content = (await client.get(f"/jobs/{job}")).json()["dataContent"]
    assert content[0] == {**ABC, "s3Path": "s3://b/k"}
    assert content[1]["status"] == "DLQ"
    assert content[1]["error"] == {"type": "Boom", "message": "it broke"}
    (first, second) = (await client.get(f"/jobs/{job}/inputs")).json()["items"]
    assert (first["s3Path"], first["reused"], first["error"]) == ("s3://b/k", False, None)
    assert second["error"]["message"] == "it broke"


@pytest.mark.parametrize("name", ["input", "s3Path", "status", "error", "reason"])
async def test_an_own_field_is_never_taken_for_one_of_ours_nor_lost(
    client: httpx.AsyncClient, database: Database, name: str
) -> None:
    job = await submit(client, notes(1))
    own = {"text": "x", name: "its own"}
    await database.fetch(
        text(
            "UPDATE input SET entry_id = NULL, settled_at = now(), status = 'SUCCEEDED',"
            ' body = CAST(:body AS jsonb), result = CAST(\'{"s3Path": "s3://b/k"}\' AS jsonb)'
        ).bindparams(body=json.dumps(own))
    )
    (content,) = (await client.get(f"/jobs/{job}")).json()["dataContent"]
    assert content == {"input": own, "s3Path": "s3://b/k"}


@pytest.mark.parametrize("path", [5, ["s3://b/k"], {"a": 1}, True, None])
async def test_a_path_that_is_no_text_is_in_the_result_alone(
    client: httpx.AsyncClient, database: Database, path: object
) -> None:
    job = await submit(client, notes(1))
    await database.fetch(
        text(
            "UPDATE input SET entry_id = NULL, settled_at = now(), status = 'SUCCEEDED',"
            " result = CAST(:result AS jsonb)"
        ).bindparams(result=json.dumps({"s3Path": path}))
    )
    (content,) = (await client.get(f"/jobs/{job}")).json()["dataContent"]
    (item,) = (await client.get(f"/jobs/{job}/inputs")).json()["items"]
    whole = (await client.get(f"/jobs/{job}/inputs/0")).json()
    assert [each["s3Path"] for each in (content, item, whole)] == [None] * 3
    assert item["result"] == whole["result"] == {"s3Path": path}


async def test_the_content_of_a_large_job_is_left_to_its_pages(client: httpx.AsyncClient) -> None:
    job = await submit(client, notes(21))
    document = (await client.get(f"/jobs/{job}")).json()
    assert document["dataContent"] is None
    assert document["dataContentOmitted"]["href"] == f"/jobs/{job}/inputs"
    items = [
        item for page in await pages(client, f"/jobs/{job}/inputs", pageSize=8) for item in page
    ]
    assert [item["ordinal"] for item in items] == list(range(21))


async def test_content_of_many_bytes_is_left_to_the_pages_too(
    client: httpx.AsyncClient,
) -> None:
    texts = [f"{number}{'x' * 15_000}" for number in range(18)]
    sent = {"kind": "note", "inputs": [{"text": text} for text in texts]}
    job = await submit(client, sent)
    document = (await client.get(f"/jobs/{job}")).json()
    assert document["dataContent"] is None
    assert "too large" in document["dataContentOmitted"]["reason"]


@pytest.mark.parametrize(
    "job",
    ["J20260110_000777", "x", "J20260110_" + "9" * 19, "J1_1", "J20260110_%00", "a" * 5_000, "%ff",
     "J20260110_٠٠٠٧٧٧", "9223372036854775808", "..%2f", "J20260110_000777%0a"],
)  # fmt: skip
async def test_what_is_no_job_is_not_found(client: httpx.AsyncClient, job: str) -> None:
    for address in (f"/jobs/{job}", f"/jobs/{job}/inputs", f"/api/jobs/{job}"):
        response = await client.get(address)
        assert response.status_code == 404
        assert response.json()["type"] == "urn:haulage:problem:not-found"


async def test_another_owners_job_is_not_found_but_an_admin_sees_it(api: Api) -> None:
    async with await api.client(owner="acme") as acme:
        job = await submit(acme, {"inputs": [ABC]})
    async with await api.client(owner="zeta") as zeta:
        await submit(zeta, {"inputs": [ABC]})
        assert (await zeta.get(f"/jobs/{job}")).status_code == 404
        assert (await zeta.get(f"/jobs/{job}/inputs")).status_code == 404
        assert job not in (await zeta.get("/jobs")).text
        assert (await zeta.get("/jobs", params={"owner": "acme"})).status_code == 403
    async with await api.client(owner="ops", role="admin") as admin:
        assert (await admin.get(f"/jobs/{job}")).json()["owner"] == "acme"
        assert len((await admin.get("/jobs")).json()["items"]) == 2
        (found,) = (await admin.get("/jobs", params={"owner": "acme"})).json()["items"]
        assert found["jobId"] == job
        assert (await admin.get("/jobs", params={"owner": "nobody"})).json()["items"] == []


async def test_jobs_of_one_instant_are_neither_skipped_nor_repeated(
    client: httpx.AsyncClient, database: Database
) -> None:
    jobs = [await submit(client, notes(1)) for _ in range(7)]
    await database.fetch(text("UPDATE job SET requested_at = now()"))
    found = await pages(client, "/jobs", pageSize=2)
    assert [len(page) for page in found] == [2, 2, 2, 1]
    assert [item["jobId"] for page in found for item in page] == jobs[::-1]


async def test_jobs_are_filtered_by_each_parameter(
    client: httpx.AsyncClient, database: Database
) -> None:
    export = await client.post("/jobs", json={"inputs": [ABC]}, headers={"X-Correlation-Id": "c-1"})
    first, second = str(export.json()["jobId"]), await submit(client, notes(1))
    await database.fetch(
        text(f"UPDATE job SET status = 'RUNNING', started_at = now() WHERE key = '{second}'")
    )
    requested_at = (await client.get(f"/jobs/{second}")).json()["requestedAt"]

    async def listed(**query: Any) -> list[str]:
        found = await pages(client, "/jobs", pageSize=1, **query)
        return [item["jobId"] for page in found for item in page]

    assert await listed() == [second, first]
    assert await listed(status="SUBMITTED") == [first]
    assert await listed(status=["SUBMITTED", "RUNNING"]) == [second, first]
    assert await listed(status="FAILED") == []
    assert await listed(kind="note") == [second]
    assert await listed(correlationId="c-1") == [first]
    assert await listed(correlationId="c-1", status="RUNNING") == []
    assert await listed(requestedFrom=requested_at) == [second]
    assert await listed(requestedTo=requested_at) == [first]


async def test_inputs_are_filtered_by_the_state_that_the_view_gives(
    client: httpx.AsyncClient, database: Database
) -> None:
    job = await submit(client, notes(30))
    await database.fetch(
        text("UPDATE input SET status = 'SKIPPED', entry_id = NULL WHERE ordinal % 10 = 3")
    )
    await database.fetch(
        text(
            "UPDATE outbox SET state = 'CLAIMED', locked_by = 'w',"
            " locked_until = now() + interval '1 minute'"
        )
    )

    async def ordinals(*states: str) -> list[int]:
        found = await pages(client, f"/jobs/{job}/inputs", status=list(states), pageSize=2)
        return [item["ordinal"] for page in found for item in page]

    assert await ordinals("SKIPPED") == [3, 13, 23]
    assert len(await ordinals("RUNNING")) == 27
    assert len(await ordinals("RUNNING", "SKIPPED")) == 30
    assert await ordinals("DLQ") == []


@pytest.mark.parametrize("cursor", CURSORS)
async def test_a_bad_cursor_is_a_400(client: httpx.AsyncClient, cursor: str) -> None:
    job = await submit(client, notes(2))
    for address in ("/jobs", f"/jobs/{job}/inputs"):
        response = await client.get(address, params={"after": cursor})
        assert response.status_code == 400
        assert response.json()["errors"][0]["parameter"] == "after"


async def test_a_cursor_serves_only_its_own_list(client: httpx.AsyncClient) -> None:
    jobs = [await submit(client, notes(3)) for _ in range(2)]
    cursor = (await client.get("/jobs", params={"pageSize": 1})).json()["next"]
    inputs = (await client.get(f"/jobs/{jobs[0]}/inputs", params={"pageSize": 1})).json()["next"]
    for address, query in (
        ("/jobs", {"after": cursor + "!"}),
        ("/jobs", {"after": cursor, "status": "FAILED"}),
        ("/jobs", {"after": inputs}),
        (f"/jobs/{jobs[0]}/inputs", {"after": cursor}),
        (f"/jobs/{jobs[1]}/inputs", {"after": inputs}),
        (f"/jobs/{jobs[0]}/inputs", {"after": inputs, "status": "DLQ"}),
    ):
        assert (await client.get(address, params=query)).status_code == 400
    assert (await client.get("/jobs", params={"after": cursor, "pageSize": 7})).status_code == 200


@pytest.mark.parametrize(
    ("query", "parameter"),
    [
        ("pageSize=0", "pageSize"),
        ("pageSize=501", "pageSize"),
        ("pageSize=2147483648", "pageSize"),
        ("pageSize=9223372036854775808", "pageSize"),
        ("pageSize=" + "9" * 5_000, "pageSize"),
        ("pageSize=-1", "pageSize"),
        ("pageSize=1&pageSize=2", "pageSize"),
        ("pageSize=%00", "pageSize"),
        ("pageSize=٣", "pageSize"),
        ("pagesize=1", "pagesize"),
        ("status=DONE", "status"),
        ("status=%00", "status"),
    ],
)
async def test_a_bad_parameter_is_named(
    client: httpx.AsyncClient, query: str, parameter: str
) -> None:
    job = await submit(client, notes(1))
    for address in ("/jobs", f"/jobs/{job}/inputs"):
        response = await client.get(f"{address}?{query}")
        assert response.status_code == 422
        assert [bad["parameter"] for bad in response.json()["errors"]] == [parameter]


@pytest.mark.parametrize(
    "query",
    ["requestedFrom=2026-01-01", "requestedTo=now", "requestedFrom=2026-01-01T00:00:00",
     "correlationId=a%20b", "kind=none", "requestedTo=0001-01-01T00:00:00%2B14:00"],
)  # fmt: skip
async def test_a_bad_filter_of_jobs_is_named(client: httpx.AsyncClient, query: str) -> None:
    response = await client.get(f"/jobs?{query}")
    assert response.status_code == 422
    assert response.json()["errors"][0]["parameter"] == query.partition("=")[0]
