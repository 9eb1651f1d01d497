"""The doctor: silent on a healthy database, and it names what was broken by hand."""

import asyncio

import pytest

from dispatcher import doctor
from infra.database import Database
from schema.outcome import Refused, Succeeded
from schema.statements.doctor import CHECKS
from tests.platform import Platform, settings_for
from tests.steps import claim_all, settle_as

BREAKAGES = {
    "counters": "UPDATE job SET succeeded = succeeded - 1 WHERE key = :key RETURNING id",
    "unnamed input": "DELETE FROM outbox WHERE job_id = :id RETURNING id",
    "left behind": "UPDATE job SET status = 'CANCELLED', finished_at = now() WHERE key = :key"
    " RETURNING id",
    "miscounted entry": "UPDATE outbox SET unfinished = 1 WHERE job_id = :id RETURNING id",
    "dead letters": "DELETE FROM dead_letter WHERE job_id = :id RETURNING ordinal",
    "misplaced entry": "UPDATE outbox SET state = 'HELD' WHERE job_id = :id RETURNING id",
    "wrong end": "UPDATE job SET status = 'FAILED', finished_at = now(), dlq = 0 WHERE key = :key"
    " RETURNING id",
    "attempts over the cap": "UPDATE input SET attempts = 9 WHERE job_id = :id AND ordinal = 3"
    " RETURNING ordinal",
    "orphans": "INSERT INTO attempt (job_id, ordinal, generation, attempt, status, worker,"
    " error_class, error_message) VALUES (:id, 99, 0, 1, 'DLQ', 'w', 'c', 'm') RETURNING ordinal",
    "ownerless job": "UPDATE job SET owner_id = gen_random_uuid() WHERE id = :id RETURNING id",
    "lapsed lease": "UPDATE outbox SET state = 'CLAIMED', locked_by = 'w',"
    " locked_until = now() - interval '1 day' WHERE job_id = :id RETURNING id",
    "late entry": "UPDATE outbox SET deferred = true, available_at = now() - interval '1 day'"
    " WHERE job_id = :id RETURNING id",
    "lost message": "UPDATE outbox SET state = 'SENT', sent_at = now() - interval '1 day'"
    " WHERE job_id = :id RETURNING id",
    "stuck sweeping": "UPDATE job SET status = 'CANCELLED', sweeping = true,"
    " finished_at = now() - interval '1 day' WHERE key = :key RETURNING id",
    "unexpired job": "UPDATE job SET expires_at = now() - interval '1 day' WHERE key = :key"
    " RETURNING id",
    "parked entry": "UPDATE outbox SET state = 'PARKED', parked_reason = 'r' WHERE job_id = :id"
    " RETURNING id",
    "parked message": "INSERT INTO parked_message (queue, message_id, reason, body, attributes,"
    " job_id) VALUES ('q', 'm', 'r', 'b', '{}', :id) RETURNING id",
    "unended job": "UPDATE job SET succeeded = total - 1 WHERE key = :key RETURNING id",
}


async def broken(platform: Platform, database: Database, statement: str) -> str:
    """A job with one success, one dead letter and eight inputs to do; then the breakage."""
    job_id = await platform.submit(20)
    first, second = await claim_all(database)
    await settle_as(database, first, Refused("Bad", "x"), *[Succeeded()] * 9)
    await platform.rows(
        "UPDATE outbox SET state = 'PENDING', locked_by = NULL, locked_until = NULL"
        " WHERE id = :id RETURNING id",
        id=second.entry_id,
    )
    key: str = (await platform.job(job_id)).key
    values = {"id": job_id, "key": key}
    await platform.rows(
        statement, **{name: value for name, value in values.items() if f":{name}" in statement}
    )
    return key


@pytest.mark.parametrize("name", BREAKAGES)
async def test_what_is_broken_is_named_with_what_to_do(
    platform: Platform, database: Database, database_url: str, name: str
) -> None:
    key = await broken(platform, database, BREAKAGES[name])
    other = await platform.submit(1)
    said: list[str] = []
    settings = settings_for(database_url)
    assert await doctor.diagnose(settings, key=None, say=said.append) == doctor.PROBLEMS
    text = "".join(said)
    assert f"{name}: " in text
    assert "what to do" in text
    assert await doctor.diagnose(settings, key=key, say=said.append) == doctor.PROBLEMS
    healthy = (await platform.job(other)).key
    assert await doctor.diagnose(settings, key=healthy, say=said.append) == doctor.HEALTHY


def test_every_check_has_its_breakage() -> None:
    assert set(BREAKAGES) == {check.name for check in CHECKS}


async def test_a_database_at_work_is_healthy(
    platform: Platform, database: Database, database_url: str
) -> None:
    for _ in range(5):
        await platform.submit(50)

    async def work() -> None:
        for _ in range(30):
            for claim in await claim_all(database, most=2):
                await settle_as(database, claim, *[Succeeded()] * len(claim.inputs))

    async def look() -> None:
        for _ in range(5):
            code = await doctor.diagnose(settings_for(database_url), key=None, say=len)
            assert code == doctor.HEALTHY

    await asyncio.gather(work(), work(), look())


async def test_an_unknown_job_is_nothing_it_can_tell_of(
    platform: Platform, database_url: str
) -> None:
    code = await doctor.diagnose(settings_for(database_url), key="J20260101_000009", say=len)
    assert code == doctor.CANNOT_TELL


def test_a_database_that_is_away_is_nothing_it_can_tell_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://127.0.0.1:1/x")
    monkeypatch.setenv("CONSUMER_MODE", "outbox")
    assert doctor.main([]) == doctor.AWAY
    assert "cannot tell" in capsys.readouterr().err
