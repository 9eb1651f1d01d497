"""The sample prices in a real database."""

import asyncio

import asyncpg

from localstack import demo, seed
from localstack.postgres import Cluster

TABLE = """
    CREATE TABLE index_level (
        index_key text, effective_date date, asof_indicator text, line int, level numeric,
        PRIMARY KEY (index_key, effective_date, asof_indicator, line)
    )
"""


def test_it_is_loaded_once_however_often_it_is_run(postgres: Cluster) -> None:
    async def scenario() -> list[tuple[object, ...]]:
        administrator = await asyncpg.connect(postgres.socket_url())
        await administrator.execute("CREATE DATABASE seeded")
        try:
            url = postgres.socket_url("seeded")
            connection = await asyncpg.connect(url)
            await connection.execute(TABLE)
            await seed.seed(url)
            await connection.execute("UPDATE index_level SET level = 0 WHERE index_key = 'IBM'")
            await seed.seed(url)
            found = await connection.fetch(
                "SELECT index_key, count(*), min(level) > 0 FROM index_level GROUP BY 1 ORDER BY 1"
            )
            await connection.close()
            return [tuple(row) for row in found]
        finally:
            await administrator.execute("DROP DATABASE seeded WITH (FORCE)")
            await administrator.close()

    assert asyncio.run(scenario()) == [
        ("AAPL", 123, True),
        ("AMZN", 123, True),
        ("GOOG", 68, True),
        ("IBM", 123, True),
        ("MSFT", 123, True),
    ]


def test_the_demo_asks_for_every_symbol_and_for_no_input_twice() -> None:
    inputs = demo.sample_inputs()
    assert len(inputs) == 5 * demo.DATES
    assert len({tuple(sorted(one.items(), key=str)) for one in inputs}) == len(inputs)


def test_a_job_that_is_too_large_to_list_its_files_is_shown_without_them() -> None:
    """The API says null then, above HAULAGE_DATA_CONTENT_LIMIT."""
    assert demo.shortened({"dataContent": None}) == {"dataContent": None}
