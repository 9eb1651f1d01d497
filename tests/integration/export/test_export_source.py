"""A query that can never run is found when the consumer starts."""

import pytest

from consumer.processors.export_source import DEFAULT_SQL, ExportSource
from infra.database import Database
from infra.settings import Settings
from schema.errors import Misconfigured, Unavailable
from tests.platform import settings_for

PARAMETERS = (
    "CAST(:index_key AS text), CAST(:effective_date AS date), CAST(:asof_indicator AS text)"
)


async def check(settings: Settings, sql: str | None) -> None:
    source = ExportSource.from_settings(settings.model_copy(update={"export_sql": sql}))
    try:
        await source.check()
    finally:
        await source.close()


@pytest.mark.parametrize(
    "sql",
    [
        None,
        DEFAULT_SQL,
        f"SELECT {PARAMETERS};",
        f"  WITH a AS (SELECT {PARAMETERS}) TABLE a -- all",
    ],
)
async def test_a_query_that_can_run_is_accepted(database_url: str, sql: str | None) -> None:
    await check(settings_for(database_url), sql)


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("SELECT 1", "must have the parameters"),
        (f"SELECT {PARAMETERS}, :more", "must have the parameters"),
        (f"SELECT {PARAMETERS} FROM nowhere", 'cannot run: .*relation "nowhere" does not exist'),
        (f"SELEC {PARAMETERS}", "cannot run: .*syntax error"),
        (f"SELECT {PARAMETERS}; SELECT 1", "cannot run: .*syntax error"),
        (f"DROP TABLE job; SELECT {PARAMETERS}", "cannot run"),
        ("SELECT :index_key + 1, :effective_date, :asof_indicator", "cannot run"),
    ],
)
async def test_a_query_that_can_never_run_is_a_misconfiguration(
    database_url: str, sql: str, reason: str
) -> None:
    with pytest.raises(Misconfigured, match=rf"HAULAGE_EXPORT_SQL {reason}"):
        await check(settings_for(database_url), sql)


async def test_of_a_source_that_is_away_nothing_can_be_said(
    database_url: str, unused_tcp_port: int
) -> None:
    away = f"postgresql://postgres@127.0.0.1:{unused_tcp_port}/x"
    with pytest.raises(Unavailable):
        await check(settings_for(database_url, export_database_url=away), None)


async def test_a_query_cannot_write(database_url: str, database: Database) -> None:
    sql = f"WITH gone AS (DELETE FROM owner RETURNING id) SELECT {PARAMETERS}"
    settings = settings_for(database_url, export_sql=sql)
    with pytest.raises(Misconfigured, match=r"cannot run: .*data-modifying"):
        await check(settings, sql)
