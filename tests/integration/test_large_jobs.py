"""Control of a large job: the answer is immediate, and no batch grows with the job."""

import time

import pytest
from sqlalchemy import text

from infra.database import Database
from schema.statements.control import cancel_job, pause_job, resume_job
from tests.platform import Platform
from tests.steps import control, sweeper


@pytest.mark.parametrize("inputs", [100_000])
async def test_a_large_job_is_controlled_at_once_and_swept_in_bounded_batches(
    platform: Platform, database: Database, inputs: int
) -> None:
    job_id = await platform.submit(1, chunk_size=1)
    await platform.rows("UPDATE job SET total = :total RETURNING id", total=inputs)
    await platform.rows("DELETE FROM outbox RETURNING id")
    await platform.rows("DELETE FROM input RETURNING ordinal")
    await platform.rows(
        """
        WITH e AS (
            INSERT INTO outbox (type, job_id, owner_id, kind, first_ordinal, last_ordinal,
                                unfinished, correlation_id)
            SELECT 'inputs', id, owner_id, kind, f, f + 99, 100, correlation_id
            FROM job, generate_series(0, total - 1, 100) AS f RETURNING id, job_id, first_ordinal)
        INSERT INTO input (job_id, ordinal, entry_id, body)
        SELECT job_id, first_ordinal + n, id, '1' FROM e, generate_series(0, 99) AS n
        RETURNING ordinal
        """
    )
    await database.fetch(text("ANALYZE"))
    one = sweeper(database)
    for statement, state in ((pause_job, "HELD"), (resume_job, "PENDING"), (cancel_job, None)):
        began = time.monotonic()
        await control(platform, statement, job_id)
        answered_ms = (time.monotonic() - began) * 1_000
        assert answered_ms < 1_000
        began, batches, slowest = time.monotonic(), 0, 0.0
        while True:
            batch_began = time.monotonic()
            moved = await one.once()
            batches, slowest = batches + 1, max(slowest, time.monotonic() - batch_began)
            assert moved <= 100
            if not moved:
                break
        seconds = time.monotonic() - began
        print(
            f"{statement.__name__}: answer {answered_ms:.1f} ms, {batches} batches in"
            f" {seconds:.1f} s, slowest {slowest * 1000:.0f} ms"
        )
        assert {entry.state for entry in await platform.entries(job_id)} == ({state} - {None})
        assert not (await platform.job(job_id)).sweeping
    assert (await platform.job(job_id)).cancelled == inputs
    await platform.check_consistency()
