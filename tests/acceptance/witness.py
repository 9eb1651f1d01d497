"""What the database itself saw: each move of an input, written down by a trigger of the test's.

Rows and counters say how a job ended; only this says that no input ended twice on the way.
"""

from collections import Counter
from uuid import UUID

from infra.database import Database
from schema.lifecycle import TERMINAL_INPUT_STATUSES
from tests.platform import Platform

_STATEMENTS = (
    """
    CREATE TABLE witnessed (
        job_id uuid, ordinal integer, before text, after text, run text, by text,
        at timestamptz DEFAULT clock_timestamp()
    )
    """,
    """
    CREATE FUNCTION witness() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO witnessed VALUES (
            NEW.job_id, NEW.ordinal, OLD.status, NEW.status, NEW.result ->> 'run',
            current_setting('application_name'));
        RETURN NULL;
    END $$
    """,
    """
    CREATE TRIGGER witness AFTER UPDATE OF status ON input
    FOR EACH ROW EXECUTE FUNCTION witness()
    """,
)


class Witness:
    """Answers what happened to the inputs of a database, from the moment it was called in."""

    def __init__(self, database: Database) -> None:
        self._platform = Platform(database)

    async def call_in(self) -> None:
        for statement in _STATEMENTS:
            await self._platform.rows(statement)

    async def ended(self, job_id: UUID) -> Counter[int]:
        """Count how often each ordinal came to a final status."""
        rows = await self._platform.rows(
            "SELECT ordinal FROM witnessed WHERE job_id = :job_id AND after = ANY(:final)",
            job_id=job_id,
            final=sorted(TERMINAL_INPUT_STATUSES),
        )
        return Counter(row.ordinal for row in rows)

    async def accepted_runs(self, job_id: UUID) -> dict[int, str]:
        """Give the run whose outcome counts, by ordinal."""
        rows = await self._platform.rows(
            "SELECT ordinal, run FROM witnessed WHERE job_id = :job_id AND after = 'SUCCEEDED'",
            job_id=job_id,
        )
        return {row.ordinal: row.run for row in rows}

    async def charges(self, job_id: UUID) -> Counter[int]:
        """Count the attempts that each ordinal was charged without an outcome of its own."""
        rows = await self._platform.rows(
            "SELECT ordinal FROM attempt WHERE job_id = :job_id", job_id=job_id
        )
        return Counter(row.ordinal for row in rows)
