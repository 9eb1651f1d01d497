"""What must never stand in a row is refused by the database, whoever writes it."""

import asyncpg
import pytest

from infra.migrate import migrate
from tests.databases import downgrade
from tests.platform import Platform

_REFUSED = [
    *(
        ("job", f"{column} = -1", "job_counts")
        for column in (
            "succeeded", "skipped", "not_found", "dlq", "cancelled", "expired",
            "files_generated", "files_reused", "tolerated", "forgiven",
        )
    ),
    ("job", "total = 0", "job_total"),
    ("job", "priority = 10", "job_priority_form"),
    ("job", "priority = -1", "job_priority_form"),
    ("job", "max_attempts = 0", "attempt_limit_form"),
    ("job", "max_attempts = 101", "attempt_limit_form"),
    ("job", "key = 'J20260101_1'", "job_key_form"),
    ("job", "kind = 'Upper'", "kind_name_form"),
    ("job", "idempotency_key = '', request_digest = ''", "job_idempotency_key_check"),
    ("job", "idempotency_key = 'k'", "job_idempotency_has_digest"),
    ("job", "expires_at = 'infinity'", "job_times_are_finite"),
    ("job", "status = 'DONE'", "job_status"),
    ("job", "status = 'FAILED'", "job_end_is_dated"),
    ("job", "finished_at = now()", "job_end_is_dated"),
    ("job", "pruned_at = now()", "job_pruned_is_final"),
    ("job", "succeeded = 2, dlq = 2", "job_counts_fit"),
    ("job", "status = 'COMPLETED', finished_at = now()", "job_completed_is_whole"),
    (
        "job",
        "status = 'COMPLETED', finished_at = now(), succeeded = 2, dlq = 1",
        "job_completed_is_whole",
    ),
    ("job", "succeeded = 1, files_generated = 1, files_reused = 1", "job_files_fit"),
    *(
        (table, change, check)
        for table in ("job", "outbox")
        for change, check in (
            ("correlation_id = 'a b'", "correlation_id_form"),
            ("traceparent = repeat('a', 56)", "traceparent_form"),
            ("tracestate = repeat('a', 513)", "tracestate_form"),
            ("baggage = repeat('a', 8193)", "baggage_form"),
        )
    ),
    ("outbox", "state = 'LOST'", "outbox_state"),
    ("outbox", "type = 'other', payload = '{}'", "outbox_type"),
    ("outbox", "first_ordinal = -1", "outbox_names_its_work"),
    ("outbox", "first_ordinal = 3", "outbox_names_its_work"),
    ("outbox", "unfinished = 0", "outbox_names_its_work"),
    ("outbox", "unfinished = NULL", "outbox_names_its_work"),
    ("outbox", "unfinished = 4", "outbox_names_its_work"),
    ("outbox", "payload = '{}'", "outbox_names_its_work"),
    ("outbox", "type = 'event'", "outbox_names_its_work"),
    ("outbox", "type = 'event', payload = '{}', deferred = true", "outbox_names_its_work"),
    (
        "outbox",
        "type = 'event', payload = '{}', state = 'CLAIMED', locked_by = 'w', locked_until = now()",
        "outbox_names_its_work",
    ),
    ("outbox", "locked_by = 'w'", "outbox_lock_is_whole"),
    ("outbox", "state = 'CLAIMED'", "outbox_claim_has_lease"),
    (
        "outbox",
        "state = 'HELD', locked_by = 'w', locked_until = now()",
        "outbox_only_pending_and_claimed_lock",
    ),
    ("outbox", "state = 'SENT'", "outbox_sent_is_dated"),
    ("outbox", "state = 'PARKED'", "outbox_parked_has_reason"),
    ("outbox", "parked_reason = 'so'", "outbox_parked_has_reason"),
    ("outbox", "available_at = 'infinity'", "outbox_times_are_finite"),
    ("input", "status = 'RUNNING'", "input_status"),
    ("input", "entry_id = NULL", "input_unfinished_is_named"),
    ("input", "status = 'SUCCEEDED'", "input_unfinished_is_named"),
    ("input", "reused = true", "input_file_means_success"),
    ("input", "attempts = -1", "input_attempts"),
    ("input", "generation = -1", "input_generation"),
    ("input", "ordinal = -1", "input_ordinal"),
]  # fmt: skip
_MADE = """
SELECT conrelid::regclass::text AS of, conname, contypid::regtype::text AS domain
FROM pg_constraint
WHERE contype = 'c' AND connamespace = 'public'::regnamespace
  AND (conrelid IN ('job'::regclass, 'outbox'::regclass, 'input'::regclass) OR conrelid = 0)
"""
_FILES = """
SELECT relname, pg_relation_filenode(oid) AS file FROM pg_class
WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'i')
"""
_SHAPE = """
SELECT conrelid::regclass::text AS of, conname AS name,
       replace(pg_get_constraintdef(oid), ' NOT VALID', '') AS said
FROM pg_constraint WHERE connamespace = 'public'::regnamespace AND contype = 'c'
UNION ALL
SELECT table_name, column_name, coalesce(domain_name, udt_name)
FROM information_schema.columns WHERE table_schema = 'public'
UNION ALL
SELECT relname, 'view', pg_get_viewdef(oid) FROM pg_class
WHERE relkind = 'v' AND relnamespace = 'public'::regnamespace
UNION ALL
SELECT conrelid::regclass::text, conname, replace(pg_get_constraintdef(oid), ' NOT VALID', '')
FROM pg_constraint WHERE connamespace = 'public'::regnamespace AND contype = 'f'
UNION ALL
SELECT tgrelid::regclass::text, tgname, pg_get_triggerdef(oid) FROM pg_trigger
WHERE NOT tgisinternal
UNION ALL
SELECT 'function', proname, prosrc FROM pg_proc WHERE pronamespace = 'public'::regnamespace
"""


@pytest.mark.parametrize(("table", "change", "check"), _REFUSED)
async def test_what_must_never_be_is_refused(
    platform: Platform, database_url: str, table: str, change: str, check: str
) -> None:
    await platform.submit(3)
    connection = await asyncpg.connect(database_url)
    try:
        with pytest.raises(asyncpg.CheckViolationError) as refused:
            await connection.execute(f"UPDATE {table} SET {change}")
    finally:
        await connection.close()
    assert refused.value.constraint_name == check


async def test_every_check_of_what_is_worked_on_is_tried(database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    try:
        made = {row["conname"] for row in await connection.fetch(_MADE)}
    finally:
        await connection.close()
    assert made == {check for _, _, check in _REFUSED}


async def test_an_owner_who_has_jobs_is_not_deleted_and_no_job_locks_its_owner(
    platform: Platform, database_url: str
) -> None:
    await platform.rows(
        "INSERT INTO owner (id, name) VALUES (gen_random_uuid(), 'idle') RETURNING id"
    )
    connection = await asyncpg.connect(database_url)
    try:
        async with connection.transaction():
            await connection.execute("SELECT FROM owner FOR UPDATE")
            await platform.submit(3)
        for lost in (
            "DELETE FROM owner WHERE id = $1",
            "UPDATE owner SET id = gen_random_uuid() WHERE id = $1",
        ):
            with pytest.raises(asyncpg.ForeignKeyViolationError, match=r"owner .* has jobs"):
                await connection.execute(lost, platform.owner_id)
        await connection.execute("UPDATE owner SET id = id, name = name || '2'")
        assert await connection.execute("DELETE FROM owner WHERE name = 'idle2'") == "DELETE 1"
    finally:
        await connection.close()


async def test_no_table_is_written_anew_and_what_was_changed_can_be_changed_back(
    empty_database_url: str,
) -> None:
    """The tables of a platform in use are large, and may not stand still for a migration."""
    await migrate(empty_database_url, revision="0008")
    connection = await asyncpg.connect(empty_database_url)
    try:
        files, shape = await connection.fetch(_FILES), await connection.fetch(_SHAPE)
        await connection.execute("CREATE ROLE reads_jobs_of_a_test")
        await connection.execute("GRANT SELECT ON input_state TO reads_jobs_of_a_test")
        await migrate(empty_database_url, revision="0013")
        assert set(await connection.fetch(_FILES)) == set(files)
        assert await connection.fetchval(
            "SELECT has_table_privilege('reads_jobs_of_a_test', 'input_state', 'SELECT')"
        )
        await connection.execute("DROP OWNED BY reads_jobs_of_a_test")
        await connection.execute("DROP ROLE reads_jobs_of_a_test")
        await downgrade(empty_database_url, "0008")
        assert set(await connection.fetch(_SHAPE)) == set(shape)
    finally:
        await connection.close()
