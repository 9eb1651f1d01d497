"""A large job is stored while it is read: what stops half-way, and what goes on beside it."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from pydantic import BaseModel
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from api.app import build_app
from infra.database import Database, rows_of
from infra.http import Health
from infra.wakeup import Notifier
from schema.chunking import ChunkBounds
from schema.export import ExportInput
from schema.kinds import Kind
from tests.integration.api.conftest import ABC, KINDS, AddKey, Api, Note, notes
from tests.integration.api.test_streaming import LINES, lines
from tests.platform import Platform, settings_for

AS_JSON = {"Content-Type": "application/json"}
MANY = 5_000
TURNSTILE = 4_000


@dataclass
class Turnstile:
    """Stops whoever reads a certain input of a job of the kind ``held``, until it is opened."""

    is_open: threading.Event = field(default_factory=threading.Event)
    reached: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def kind(self) -> Kind:
        return Kind("held", Note, "unused:unused", identity=self._pass)

    def _pass(self, model: BaseModel) -> object:
        assert isinstance(model, Note)
        if model.text == f"note {TURNSTILE}":
            self.reached.release()
            assert self.is_open.wait(60)
        return model.text

    async def reach(self) -> None:
        assert await asyncio.to_thread(self.reached.acquire, timeout=60)


@pytest.fixture
async def turnstile() -> AsyncIterator[Turnstile]:
    turnstile = Turnstile()
    yield turnstile
    turnstile.is_open.set()


@pytest.fixture
def api(database: Database, database_url: str, add_key: AddKey, turnstile: Turnstile) -> Api:
    return Api(large(database, database_url, turnstile), add_key)


def large(database: Database, database_url: str, turnstile: Turnstile, **changes: Any) -> Any:
    wide = ChunkBounds(maximum=999)
    kinds = {
        **KINDS,
        "held": turnstile.kind(),
        "copy": Kind("copy", ExportInput, "unused:unused"),
        "wide": Kind("wide", Note, "unused:unused", chunk=wide),
    }
    return build_app(
        settings_for(database_url, copy_from_inputs=50, **changes),
        database=database,
        notifier=Notifier(database, enabled=False),
        kinds=kinds,
        health=Health(90),
    )


@pytest.fixture
async def written(database: Database) -> None:
    """Count the statements that write inputs, those that are rolled back included."""
    for statement in (
        "CREATE SEQUENCE written",
        "CREATE FUNCTION count_written() RETURNS trigger LANGUAGE plpgsql AS"
        " $$BEGIN PERFORM nextval('written'); RETURN NULL; END$$",
        "CREATE TRIGGER count_written AFTER INSERT ON input EXECUTE FUNCTION count_written()",
    ):
        await database.fetch(text(statement))


async def times_written(platform: Platform) -> int:
    (row,) = await platform.rows(
        "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM written"
    )
    return int(row[0])


async def rows_left(platform: Platform) -> tuple[int, ...]:
    (row,) = await platform.rows(
        "SELECT (SELECT count(*) FROM job), (SELECT count(*) FROM outbox),"
        " (SELECT count(*) FROM input)"
    )
    return tuple(row)


def pointers(response: httpx.Response) -> list[str]:
    return [error["pointer"] for error in response.json()["errors"]]


def post(client: httpx.AsyncClient, body: str, **headers: str) -> asyncio.Task[httpx.Response]:
    return asyncio.create_task(client.post("/jobs", content=body, headers=LINES | headers))


async def test_a_bad_input_behind_a_hundred_thousand_leaves_nothing_and_is_named(
    client: httpx.AsyncClient, platform: Platform, written: None
) -> None:
    more = ('{"text":1}', '{"text":"a"}', '{"text":"b","y":1}')
    response = await post(client, lines(100_000, *more))
    assert response.status_code == 422
    assert pointers(response) == ["/inputs/100000/text", "/inputs/100002/y"]
    assert [error["line"] for error in response.json()["errors"]] == [100_002, 100_004]
    assert await rows_left(platform) == (0, 0, 0)
    assert await times_written(platform)


@pytest.mark.parametrize(
    ("head", "more", "wrong"),
    [
        ({"priority": 10}, [], ["/priority"]),
        ({"kind": "none"}, [], ["/kind"]),
        ({"options": {"x": 1}}, ['{"text":1}'], [f"/inputs/{MANY}/text", "/options/x"]),
    ],
)
async def test_what_is_refused_for_its_first_line_is_never_begun(
    client: httpx.AsyncClient,
    platform: Platform,
    written: None,
    head: dict[str, Any],
    more: list[str],
    wrong: list[str],
) -> None:
    response = await post(client, lines(MANY, *more, **head))
    assert pointers(response) == wrong
    assert await times_written(platform) == 0


async def test_what_is_refused_among_the_first_inputs_is_never_begun(
    client: httpx.AsyncClient, platform: Platform, written: None
) -> None:
    body = lines(MANY).replace('"note 48"', "48")
    assert pointers(await post(client, body)) == ["/inputs/48/text"]
    assert await times_written(platform) == 0


async def test_a_time_in_the_past_leaves_nothing(
    client: httpx.AsyncClient, platform: Platform
) -> None:
    response = await post(client, lines(MANY, expiresAt="2020-01-01T00:00:00Z"))
    assert [(error["pointer"], error["line"]) for error in response.json()["errors"]] == [
        ("/expiresAt", 1)
    ]
    assert await rows_left(platform) == (0, 0, 0)


async def test_a_replay_of_a_large_job_writes_nothing(
    client: httpx.AsyncClient, platform: Platform, written: None
) -> None:
    key = {"Idempotency-Key": "k"}
    first = await post(client, lines(MANY), **key)
    before = await times_written(platform)
    again = await post(client, lines(MANY), **key)
    other = await post(client, lines(MANY + 1), **key)
    assert (again.status_code, again.json()) == (202, first.json())
    assert again.headers["idempotency-replayed"] == "true"
    assert other.json()["type"] == "urn:haulage:problem:idempotency-key-reused"
    assert await times_written(platform) == before
    assert await rows_left(platform) == (1, MANY // 100, MANY)


async def test_two_large_jobs_with_one_key_at_once_are_one(
    client: httpx.AsyncClient, platform: Platform, turnstile: Turnstile
) -> None:
    posts = [post(client, lines(MANY, kind="held"), **{"Idempotency-Key": "k"}) for _ in range(2)]
    for _ in posts:
        await turnstile.reach()
    turnstile.is_open.set()
    answers = [await sent for sent in posts]
    assert [answer.status_code for answer in answers] == [202, 202]
    assert answers[0].json() == answers[1].json()
    replayed = [answer.headers.get("idempotency-replayed") for answer in answers]
    assert sorted(map(str, replayed)) == ["None", "true"]
    assert await rows_left(platform) == (1, MANY // 100, MANY)
    await platform.check_consistency()


async def test_nobody_waits_for_a_large_job_that_is_being_read(
    client: httpx.AsyncClient, platform: Platform, turnstile: Turnstile
) -> None:
    held = post(client, lines(MANY, kind="held"), **{"Idempotency-Key": "held"})
    await turnstile.reach()
    async with asyncio.timeout(30):
        assert (await client.post("/jobs", json=notes(3))).status_code == 202
        assert (await post(client, lines(MANY))).status_code == 202
        # Even the same key may be used, by whoever is quicker.
        other = await client.post("/jobs", json=notes(3), headers={"Idempotency-Key": "held"})
        assert other.status_code == 202
        listed = (await client.get("/jobs")).json()["items"]
    assert [job["total"] for job in listed] == [3, MANY, 3]
    assert not held.done()
    turnstile.is_open.set()
    refused = await held
    assert refused.json()["type"] == "urn:haulage:problem:idempotency-key-reused"
    assert await rows_left(platform) == (3, MANY // 100 + 2, MANY + 6)
    await platform.check_consistency()


async def test_a_session_that_is_killed_half_way_leaves_nothing(
    client: httpx.AsyncClient, platform: Platform, turnstile: Turnstile
) -> None:
    held = post(client, lines(MANY, kind="held"))
    await turnstile.reach()
    killed = await platform.rows(
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
        " WHERE datname = current_database() AND query LIKE 'COPY%' AND state = 'active'"
    )
    assert [tuple(row) for row in killed] == [(True,)]
    turnstile.is_open.set()
    assert (await held).status_code == 503
    assert await rows_left(platform) == (0, 0, 0)
    assert (await post(client, lines(MANY))).status_code == 202
    await platform.check_consistency()


async def test_a_client_that_is_gone_half_way_leaves_nothing_open(
    client: httpx.AsyncClient, platform: Platform, turnstile: Turnstile
) -> None:
    held = post(client, lines(MANY, kind="held"))
    await turnstile.reach()
    held.cancel()
    with pytest.raises(asyncio.CancelledError):
        await held
    turnstile.is_open.set()
    assert await rows_left(platform) == (0, 0, 0)
    assert (await post(client, lines(MANY))).status_code == 202


@pytest.mark.parametrize("place", [0, 60, 200])
async def test_a_kind_behind_its_inputs_has_them_read_again(
    client: httpx.AsyncClient, platform: Platform, place: int
) -> None:
    """What was taken for exports may be sound as such: all of it, the beginning, or nothing."""
    inputs: list[dict[str, Any]] = [{**ABC, "indexKey": f"K{number}"} for number in range(200)]
    job = {"inputs": inputs, "kind": "copy"}
    if place < len(inputs):
        job = {"inputs": [*inputs[:place], {"text": "a"}, *inputs[place:]], "kind": "note"}
        refused = await client.post("/jobs", content=json.dumps(job), headers=AS_JSON)
        assert refused.status_code == 422
        assert refused.json()["errorCount"] == 4 * len(inputs)
        assert await rows_left(platform) == (0, 0, 0)
        return
    accepted = await client.post("/jobs", content=json.dumps(job), headers=AS_JSON)
    assert accepted.status_code == 202
    kinds = await platform.rows("SELECT DISTINCT kind FROM job UNION SELECT kind FROM outbox")
    assert [row.kind for row in kinds] == ["copy"]
    assert await rows_left(platform) == (1, 2, 200)
    await platform.check_consistency()


async def test_inputs_of_many_bytes_in_chunks_of_many_are_stored(
    database: Database,
    database_url: str,
    add_key: AddKey,
    platform: Platform,
    turnstile: Turnstile,
) -> None:
    """Where a COPY was full before a chunk was, no ids were asked for, which was a 500."""
    app = large(database, database_url, turnstile, max_input_bytes=2_000_000)
    # COPY takes twice as many bytes: it doubles them again.
    backslashes = "\\" * 800_000
    body = "\n".join(
        ['{"kind":"wide"}', *(f'{{"text":"{number}{backslashes}"}}' for number in range(44))]
    )
    async with await Api(app, add_key).client() as client:
        response = await post(client, body)
    assert response.status_code == 202
    assert await rows_left(platform) == (1, 1, 44)
    await platform.check_consistency()


async def test_large_jobs_leave_others_a_connection(
    database_url: str, add_key: AddKey, turnstile: Turnstile
) -> None:
    changes = {"database_pool_size": 2, "database_pool_timeout_seconds": 10}
    settings = settings_for(database_url, **changes)
    async with Database.from_settings(settings, name="test") as narrow:
        app = large(narrow, database_url, turnstile, **changes)
        async with await Api(app, add_key).client() as client:
            posts = [post(client, lines(MANY, kind="held")) for _ in range(2)]
            await turnstile.reach()
            assert (await client.get("/jobs")).status_code == 200
            turnstile.is_open.set()
            assert [(await sent).status_code for sent in posts] == [202, 202]


@pytest.mark.parametrize("many", [3, MANY])
async def test_who_waits_too_long_for_a_key_is_told_so(
    client: httpx.AsyncClient,
    database: Database,
    database_url: str,
    add_key: AddKey,
    platform: Platform,
    turnstile: Turnstile,
    many: int,
) -> None:
    assert (await post(client, lines(1))).status_code == 202
    is_held, is_done = asyncio.Event(), asyncio.Event()

    async def hold(connection: AsyncConnection) -> None:
        # As a large job holds it while its entries are inserted.
        named = "UPDATE job SET idempotency_key = 'k', request_digest = 'another'"
        await rows_of(connection, text(named))
        is_held.set()
        await is_done.wait()

    held = asyncio.create_task(database.run(hold))
    await is_held.wait()
    settings = settings_for(database_url, statement_timeout_seconds=0.5)
    async with Database.from_settings(settings, name="test") as hasty:
        app = large(hasty, database_url, turnstile)
        async with await Api(app, add_key).client() as other:
            waited = await post(other, lines(many), **{"Idempotency-Key": "k"})
            is_done.set()
            await held
            again = await post(other, lines(many), **{"Idempotency-Key": "k"})
    assert (waited.status_code, waited.headers["Retry-After"]) == (503, "10")
    assert "another request with this Idempotency-Key" in waited.json()["detail"]
    assert again.json()["type"] == "urn:haulage:problem:idempotency-key-reused"
    assert await rows_left(platform) == (1, 1, 1)
