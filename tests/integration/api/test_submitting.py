# ruff: noqa: E501 - bodies are easier to read in one line
import asyncio
import datetime as dt
import json
import re
from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from infra.database import Database
from tests.integration.api.conftest import ABC, Api, notes

TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


async def count(database: Database, what: str) -> int:
    return int((await database.fetch(text(f"SELECT count(*) FROM {what}")))[0][0])


async def only_job(database: Database) -> Any:
    (row,) = await database.fetch(text("SELECT * FROM job"))
    return row


def pointers(response: httpx.Response) -> list[str]:
    return [error["pointer"] for error in response.json()["errors"]]


async def test_a_job_is_accepted_as_the_contract_says(
    client: httpx.AsyncClient, database: Database
) -> None:
    response = await client.post("/jobs", json={"inputs": [ABC]})
    assert response.status_code == 202
    job = response.json()["jobId"]
    assert response.json() == {"jobId": job, "status": "SUBMITTED"}
    assert re.fullmatch(r"J\d{8}_\d{6}", job)
    assert response.headers["location"] == f"/jobs/{job}"
    stored = await only_job(database)
    assert (stored.key, stored.status, stored.total) == (job, "SUBMITTED", 1)


@pytest.mark.parametrize("many", [1, 49, 50, 333])
async def test_every_input_is_named_by_one_entry_however_it_was_stored(
    client: httpx.AsyncClient, database: Database, many: int
) -> None:
    response = await client.post("/jobs", json=notes(many))
    assert response.status_code == 202
    rows = await database.fetch(
        text(
            "SELECT i.ordinal, i.body FROM input i JOIN outbox o ON o.id = i.entry_id"
            " AND o.job_id = i.job_id AND i.ordinal BETWEEN o.first_ordinal AND o.last_ordinal"
            " ORDER BY i.ordinal"
        )
    )
    assert [row.ordinal for row in rows] == list(range(many))
    assert [row.body["text"] for row in rows] == [f"note {number}" for number in range(many)]
    (sums,) = await database.fetch(text("SELECT sum(unfinished), count(*) FROM outbox"))
    assert tuple(sums) == (many, -(-many // 100))


async def test_chunks_follow_the_measured_pace_of_the_kind(
    client: httpx.AsyncClient, database: Database
) -> None:
    await database.fetch(text("INSERT INTO kind_pace (kind, input_ms) VALUES ('note', 160)"))
    await client.post("/jobs", json=notes(25))
    assert await count(database, "outbox") == 3


async def test_everything_of_the_request_is_stored(
    client: httpx.AsyncClient, database: Database
) -> None:
    later = dt.datetime(2096, 1, 1, 12, tzinfo=dt.UTC)
    body = {
        "inputs": [ABC],
        "priority": 9,
        "metadata": {"team": "ä", "n": [1, 2.5, None]},
        "options": {"reuse": {"enabled": False}},
        "policy": {"maxAttempts": 7, "failFast": True, "toleratedFailureShare": 1},
        "scheduledFor": "2096-01-01T14:00:00+02:00",
        "expiresAt": "2097-01-01T00:00:00Z",
    }
    headers = {
        "X-Correlation-Id": "order-42",
        "traceparent": TRACEPARENT,
        "tracestate": "a=1",
        "baggage": "k=v",
    }
    response = await client.post("/jobs", json=body, headers=headers)
    assert response.headers["x-correlation-id"] == "order-42"
    job = await only_job(database)
    assert (job.priority, job.max_attempts, job.fail_fast, job.tolerated) == (9, 7, True, 1)
    assert job.metadata == body["metadata"]
    assert job.options["reuse"]["enabled"] is False
    assert job.scheduled_for == later
    assert (job.correlation_id, job.traceparent) == ("order-42", TRACEPARENT)
    assert (job.tracestate, job.baggage) == ("a=1", "k=v")
    (entry,) = await database.fetch(text("SELECT * FROM outbox"))
    assert (entry.available_at, entry.correlation_id, entry.traceparent) == (
        later,
        "order-42",
        TRACEPARENT,
    )


async def test_a_job_without_trace_headers_has_a_valid_trace(
    client: httpx.AsyncClient, database: Database
) -> None:
    response = await client.post("/jobs", json={"inputs": [ABC]}, headers={"traceparent": "00-x"})
    job = await only_job(database)
    assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-01", job.traceparent)
    assert job.correlation_id == response.headers["x-correlation-id"]


async def test_times_in_the_past_are_refused_by_the_databases_clock(
    client: httpx.AsyncClient, database: Database
) -> None:
    past = {"scheduledFor": "2020-01-01T00:00:00Z", "expiresAt": "2020-01-02T00:00:00Z"}
    response = await client.post("/jobs", json={"inputs": [ABC], **past})
    assert response.status_code == 422
    assert pointers(response) == ["/scheduledFor", "/expiresAt"]
    assert await count(database, "job") == 0


@pytest.mark.parametrize("name", ["scheduledFor", "expiresAt"])
@pytest.mark.parametrize(
    "time", ["9999-12-31T23:59:59.999999Z", "9000-01-01T00:00:00Z", "0001-01-01T00:00:00Z"]
)
async def test_times_that_nobody_can_reckon_with_are_refused(
    client: httpx.AsyncClient, name: str, time: str
) -> None:
    """The driver writes the last of all times as infinity, which Postgres cannot subtract."""
    response = await client.post("/jobs", json={"inputs": [ABC], name: time})
    assert response.status_code == 422
    assert pointers(response) == [f"/{name}"]


async def test_times_in_the_past_are_named_together_with_all_else_that_is_wrong(
    client: httpx.AsyncClient, database: Database
) -> None:
    bad = {"inputs": [ABC], "priority": 10, "surprise": 1, "scheduledFor": "2020-01-01T00:00:00Z"}
    response = await client.post("/jobs", json=bad | {"expiresAt": "2020-01-02T00:00:00Z"})
    assert response.status_code == 422
    assert pointers(response) == ["/priority", "/surprise", "/scheduledFor", "/expiresAt"]
    assert response.json()["detail"] == "4 fields are not valid"
    assert await count(database, "job") == 0


async def test_twenty_parallel_posts_with_one_key_make_one_job(
    client: httpx.AsyncClient, database: Database
) -> None:
    headers = {"Idempotency-Key": "k-1"}
    for many in (3, 60):
        headers = {"Idempotency-Key": f"key of {many}"}
        async with asyncio.TaskGroup() as group:
            posts = [
                group.create_task(client.post("/jobs", json=notes(many), headers=headers))
                for _ in range(20)
            ]
        answers = [post.result() for post in posts]
        assert {answer.status_code for answer in answers} == {202}
        assert len({answer.text for answer in answers}) == 1
        assert len({answer.headers["location"] for answer in answers}) == 1
        replayed = [answer.headers.get("idempotency-replayed") for answer in answers]
        assert sorted(map(str, replayed)) == ["None"] + ["true"] * 19
    assert await count(database, "job") == 2
    assert await count(database, "input") == 63


async def test_a_key_used_for_another_body_is_refused(client: httpx.AsyncClient) -> None:
    headers = {"Idempotency-Key": "k"}
    first = await client.post("/jobs", json={"inputs": [ABC]}, headers=headers)
    again = await client.post("/jobs", json={"inputs": [ABC], "priority": 6}, headers=headers)
    assert again.status_code == 422
    assert again.json()["type"] == "urn:haulage:problem:idempotency-key-reused"
    assert again.json()["errors"][0]["header"] == "Idempotency-Key"
    assert first.json()["jobId"] in again.json()["detail"]


async def test_a_key_belongs_to_its_owner(api: Api) -> None:
    jobs = set()
    for owner in ("acme", "zeta"):
        async with await api.client(owner=owner) as client:
            answer = await client.post(
                "/jobs", json={"inputs": [ABC]}, headers={"Idempotency-Key": "k"}
            )
            jobs.add(answer.json()["jobId"])
    assert len(jobs) == 2


@pytest.mark.parametrize("key", ["", "x" * 256, "a\tb", "ä"])
async def test_an_unfit_idempotency_key_is_refused(client: httpx.AsyncClient, key: str) -> None:
    response = await client.post(
        "/jobs",
        json={"inputs": [ABC]},
        headers=[(b"Idempotency-Key", key.encode("latin-1"))],
    )
    assert response.status_code == 422
    assert response.json()["errors"][0]["header"] == "Idempotency-Key"


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ('{"inputs":[{"indexKey":NaN,"effectiveDate":20240202,"asofindicator":"C"}]}', "/inputs/0/indexKey"),
        ('{"inputs":[{"indexKey":"a\\u0000b","effectiveDate":20240202,"asofindicator":"C"}]}', "/inputs/0/indexKey"),
        ('{"kind":"note","inputs":[{"text":"\\ud800"}]}', "/inputs/0/text"),
        ('{"kind":"note","inputs":[{"text":"a"}],"metadata":{"x":Infinity}}', "/metadata/x"),
        ('{"kind":"note","inputs":[{"text":"a"}],"metadata":{"a\\u0000":1}}', "/metadata/a\N{REPLACEMENT CHARACTER}"),
        ('{"kind":"note","inputs":[{"text":"a"}],"metadata":{"x":1e999}}', "/metadata/x"),
        ('{"kind":"note","inputs":[{"text":"a"}],"metadata":{"x":9223372036854775808}}', "/metadata/x"),
        ('{"kind":"note","inputs":[{"text":"a"}],"priority":2147483648}', "/priority"),
        ('{"kind":"note","inputs":[{"text":"a"}],"policy":{"maxAttempts":9223372036854775807}}', "/policy/maxAttempts"),
        ('{"inputs":[{"indexKey":"A","effectiveDate":20240230,"asofindicator":"C"}]}', "/inputs/0/effectiveDate"),
        ('{"kind":"note","inputs":[{"text":"a"},{"text":"a"}]}', "/inputs/1"),
    ],
)  # fmt: skip
async def test_what_cannot_be_stored_is_refused_at_the_edge(
    client: httpx.AsyncClient, database: Database, body: str, pointer: str
) -> None:
    response = await client.post(
        "/jobs", content=body, headers={"Content-Type": "application/json"}
    )
    assert response.status_code == 422
    assert pointers(response) == [pointer]
    assert response.headers["content-type"] == "application/problem+json"
    assert await count(database, "job") == 0


@pytest.mark.parametrize(
    ("headers", "content", "status"),
    [
        ({}, "{}", 415),
        ({"Content-Type": "text/plain"}, "{}", 415),
        ({"Content-Type": "application/json; charset=latin-1"}, "{}", 415),
        ({"Content-Type": "application/json", "Content-Encoding": "gzip"}, "{}", 415),
        ({"Content-Type": "application/json"}, "", 400),
        ({"Content-Type": "application/json"}, "hello", 400),
        ({"Content-Type": "application/json"}, "[" * 100_000, 422),
        ({"Content-Type": "application/json; charset=UTF-8"}, "[]", 422),
        ({"Content-Type": "application/json"}, '{"inputs":[' + " " * 300_001, 413),
    ],
)
async def test_bodies_of_the_wrong_kind_are_refused(
    client: httpx.AsyncClient, headers: dict[str, str], content: str, status: int
) -> None:
    response = await client.post("/jobs", content=content, headers=headers)
    assert response.status_code == status
    assert response.json()["correlationId"] == response.headers["x-correlation-id"]


async def test_the_limit_holds_while_an_undeclared_body_streams_in(
    client: httpx.AsyncClient,
) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 10_000
            yield b" " * 10_000

    response = await client.post(
        "/jobs", content=endless(), headers={"Content-Type": "application/json"}
    )
    assert response.status_code == 413
    assert sent < 400_000


json_documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(max_size=8) | st.sampled_from(["inputs", "kind"]), inner, max_size=5
        )
    ),
    max_leaves=10,
)


def as_json(text: str) -> Any:
    """Read JSON as what it says: its numbers are decimal, however they are written."""
    return json.loads(text, parse_float=Decimal, parse_int=Decimal)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(metadata=json_documents, note=json_documents)
async def test_whatever_is_sent_is_stored_as_sent_or_refused(
    client: httpx.AsyncClient, metadata: Any, note: Any
) -> None:
    document = {"kind": "note", "inputs": [{"text": note}], "metadata": {"given": metadata}}
    response = await client.post(
        "/jobs", content=json.dumps(document), headers={"Content-Type": "application/json"}
    )
    assert response.status_code in {202, 422}
    if response.status_code == 202:
        job = as_json((await client.get(response.headers["location"])).text)
        assert job["dataContent"][0]["text"] == note
        assert job["metadata"] == as_json(json.dumps({"given": metadata}))
