"""Jobs that come as lines, over HTTP: stored whole or not at all, like any other."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from infra.database import Database
from tests.integration.api.conftest import AddKey, Api, application, notes
from tests.platform import Platform

LINES = {"Content-Type": "application/x-ndjson"}
OTHER = '{"text":"another \\\\ \\" \\t \\u2028 \u2028"}'


def lines(many: int, *more: str, **head: Any) -> str:
    job = notes(many)
    texts = [json.dumps(line) for line in ({"kind": "note", **head}, *job["inputs"])]
    return "\n".join([*texts, *more]) + "\n"


async def only_count(database: Database, what: str) -> int:
    return int((await database.fetch(text(f"SELECT count(*) FROM {what}")))[0][0])


@pytest.mark.parametrize("many", [1, 49, 50, 999])
async def test_a_job_of_lines_is_stored_as_it_was_sent(
    client: httpx.AsyncClient, platform: Platform, many: int
) -> None:
    response = await client.post("/jobs", content=lines(many, OTHER, priority=8), headers=LINES)
    assert response.status_code == 202
    job = (await client.get(response.headers["location"])).json()
    assert (job["total"], job["priority"], job["kind"]) == (many + 1, 8, "note")
    rows = await platform.rows("SELECT ordinal, body FROM input ORDER BY ordinal")
    assert [row.body for row in rows] == [*notes(many)["inputs"], json.loads(OTHER)]
    assert [row.ordinal for row in rows] == list(range(many + 1))
    await platform.check_consistency()


async def test_more_rows_than_one_copy_takes_are_one_job(
    database: Database, database_url: str, add_key: AddKey, platform: Platform
) -> None:
    many = 100_001
    app = application(database, database_url)
    async with await Api(app, add_key).client() as client:
        response = await client.post("/jobs", content=lines(many), headers=LINES)
    assert response.status_code == 202
    (found,) = await platform.rows(
        "SELECT count(*) AS n, max(ordinal) AS last, count(DISTINCT entry_id) AS entries FROM input"
    )
    assert tuple(found) == (many, many - 1, 1_001)
    await platform.check_consistency()


async def test_no_statement_inserts_more_entries_than_a_bound_however_large_the_job(
    client: httpx.AsyncClient, database: Database, platform: Platform
) -> None:
    """With one input each they are as many as the inputs, and a statement has its time limit."""
    many = 45_000
    for statement in (
        "INSERT INTO kind_pace (kind, input_ms) VALUES ('note', 1e6)",
        "CREATE TABLE inserted (entries bigint)",
        "CREATE FUNCTION count_inserted() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN"
        " INSERT INTO inserted SELECT count(*) FROM fresh; RETURN NULL; END$$",
        "CREATE TRIGGER count_inserted AFTER INSERT ON outbox REFERENCING NEW TABLE AS fresh"
        " EXECUTE FUNCTION count_inserted()",
    ):
        await database.fetch(text(statement))
    scheduled = "2096-01-01T00:00:00Z"
    body = lines(many, scheduledFor=scheduled)
    assert (await client.post("/jobs", content=body, headers=LINES)).status_code == 202
    batches = await platform.rows("SELECT entries FROM inserted")
    assert [row.entries for row in batches] == [20_000, 20_000, 5_000]
    (found,) = await platform.rows(
        "SELECT count(*) AS n, count(DISTINCT available_at) AS due, count(DISTINCT turn_at) AS turn"
        " FROM outbox o JOIN input i ON i.job_id = o.job_id AND i.entry_id = o.id"
        " WHERE i.ordinal = o.first_ordinal AND i.ordinal = o.last_ordinal AND o.deferred"
    )
    assert tuple(found) == (many, 1, many)
    await platform.check_consistency()


@pytest.mark.parametrize("many", [3, 60])
@pytest.mark.parametrize("first_as_lines", [True, False])
async def test_a_key_finds_its_job_again_in_either_form(
    client: httpx.AsyncClient, database: Database, many: int, first_as_lines: bool
) -> None:
    key = {"Idempotency-Key": "k"}

    async def post(*, as_lines: bool) -> httpx.Response:
        if as_lines:
            return await client.post("/jobs", content=lines(many), headers=LINES | key)
        return await client.post("/jobs", json=notes(many), headers=key)

    answers = [await post(as_lines=form) for form in (first_as_lines, not first_as_lines)]
    assert [answer.status_code for answer in answers] == [202, 202]
    assert answers[0].json() == answers[1].json()
    assert answers[1].headers["idempotency-replayed"] == "true"
    other = await client.post("/jobs", content=lines(many, OTHER), headers=LINES | key)
    assert other.json()["type"] == "urn:haulage:problem:idempotency-key-reused"
    assert await only_count(database, "job") == 1


async def test_twenty_parallel_streams_with_one_key_make_one_job(
    client: httpx.AsyncClient, database: Database
) -> None:
    headers = LINES | {"Idempotency-Key": "k"}
    async with asyncio.TaskGroup() as group:
        posts = [
            group.create_task(client.post("/jobs", content=lines(700), headers=headers))
            for _ in range(20)
        ]
    assert {post.result().status_code for post in posts} == {202}
    assert len({post.result().text for post in posts}) == 1
    assert await only_count(database, "job") == 1
    assert await only_count(database, "input") == 700


@pytest.mark.parametrize(
    ("last", "status", "pointer"),
    [
        ('{"text":7}', 422, "/inputs/900/text"),
        ('{"text":"note 3"}', 422, "/inputs/900"),
        ('{"text":"\\ud800"}', 422, "/inputs/900/text"),
        ('{"text":"x"', 400, None),
    ],
)
async def test_a_bad_last_line_leaves_nothing_behind(
    client: httpx.AsyncClient, database: Database, last: str, status: int, pointer: str | None
) -> None:
    response = await client.post("/jobs", content=lines(900, last), headers=LINES)
    assert response.status_code == status
    if pointer is not None:
        assert [error["pointer"] for error in response.json()["errors"]] == [pointer]
    for table in ("job", "outbox", "input"):
        assert await only_count(database, table) == 0


async def test_times_in_the_past_are_refused_with_all_else_that_is_wrong(
    client: httpx.AsyncClient,
) -> None:
    head = {"scheduledFor": "2020-01-01T00:00:00Z", "priority": 10}
    response = await client.post("/jobs", content=lines(60, '{"text":1}', **head), headers=LINES)
    assert response.status_code == 422
    pointers = [error["pointer"] for error in response.json()["errors"]]
    assert pointers == ["/inputs/60/text", "/priority", "/scheduledFor"]


async def test_the_limits_of_lines_are_their_own(
    database: Database, database_url: str, add_key: AddKey
) -> None:
    app = application(
        database,
        database_url,
        max_inputs=10,
        max_body_bytes=2_000,
        max_stream_inputs=100,
        max_stream_bytes=200_000,
    )

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b" " * 10_000

    async with await Api(app, add_key).client() as client:
        assert (await client.post("/jobs", json=notes(11))).status_code == 422
        assert (await client.post("/jobs", content=lines(100), headers=LINES)).status_code == 202
        too_many = await client.post("/jobs", content=lines(101), headers=LINES)
        assert [error["pointer"] for error in too_many.json()["errors"]] == ["/inputs"]
        too_large = await client.post("/jobs", content=endless(), headers=LINES)
        assert too_large.status_code == 413
        said = await client.post("/jobs", content="{}", headers={"Content-Type": "text/plain"})
        assert said.headers["accept-post"] == "application/json, application/x-ndjson"
        elsewhere = await client.post("/dlq/reprocess", content="{}", headers=LINES)
        assert elsewhere.status_code == 415
        assert elsewhere.headers["accept-post"] == "application/json"
