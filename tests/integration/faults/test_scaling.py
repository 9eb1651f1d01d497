"""``/scaling`` while the database does not answer, or has not our schema yet."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from sqlalchemy.exc import ProgrammingError
from starlette.requests import Request

from infra.backlog import Scaling
from infra.database import Database
from tests.platform import Platform, eventually, settings_for
from tests.stubs.tcp_proxy import TcpProxy


async def asked(scaling: Scaling) -> tuple[int, dict[str, Any]]:
    answer = await scaling.page(Request({"type": "http"}))
    return answer.status_code, json.loads(bytes(answer.body))


@pytest.fixture
async def patient(proxied_url: str) -> AsyncIterator[Database]:
    """A pool through the proxy that waits for an answer as long as it does in production."""
    async with Database.from_settings(settings_for(proxied_url), name="patient") as database:
        yield database


async def test_who_asks_while_the_database_is_silent_waits_once_for_all(
    patient: Database, postgres_proxy: TcpProxy
) -> None:
    scaling = Scaling(patient, concurrency=4)
    await patient.ping()
    postgres_proxy.hold()
    asked_at = time.monotonic()
    answers = await asyncio.gather(*(asked(scaling) for _ in range(8)))
    waited_seconds = time.monotonic() - asked_at
    assert {status for status, _ in answers} == {503}
    assert {said["error"] for _, said in answers} == {"no answer within 3 s"}
    assert waited_seconds < 8, "one after another they would wait for 24"
    postgres_proxy.release()

    async def answers_again() -> bool:
        return (await asked(scaling))[0] == 200

    await eventually(answers_again)


async def test_a_failure_is_remembered_for_a_moment_and_not_for_longer(
    patient: Database, postgres_proxy: TcpProxy
) -> None:
    scaling = Scaling(patient, concurrency=4)
    await postgres_proxy.outage()
    assert (await asked(scaling))[0] == 503
    await postgres_proxy.listen()

    async def answers_again() -> bool:
        return (await asked(scaling))[0] == 200

    await eventually(answers_again)


async def test_a_database_without_our_schema_is_told_as_readyz_tells_it(
    empty_database_url: str,
) -> None:
    settings = settings_for(empty_database_url)
    async with Database.from_settings(settings, name="early") as database:
        status, said = await asked(Scaling(database, concurrency=4))
    assert (status, said) == (
        503,
        {"error": "database has no schema yet: run python -m infra.migrate"},
    )


async def test_so_is_one_whose_schema_is_older_than_this_code(
    database: Database, platform: Platform
) -> None:
    await platform.rows("ALTER TABLE outbox DROP COLUMN deferred")
    await platform.rows("UPDATE alembic_version SET version_num = '0002'")
    status, said = await asked(Scaling(database, concurrency=4))
    assert status == 503
    assert "database is at revision ['0002']" in said["error"]


async def test_a_mistake_of_ours_is_not_taken_for_a_schema_that_is_to_come(
    database: Database, platform: Platform
) -> None:
    await platform.rows("ALTER TABLE outbox DROP COLUMN deferred")
    with pytest.raises(ProgrammingError):
        await asked(Scaling(database, concurrency=4))
