"""Loads the sample prices into `index_level`; running it again changes nothing.

`python -m localstack.seed` does so in the database that DATABASE_URL names.
"""

import asyncio
import csv
import datetime as dt
import os
import sys
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

import asyncpg

ASOF_INDICATOR = "ADJCLS"
_PRICES = Path(__file__).resolve().parent / "data" / "stocks.csv"
_UPSERT = """
    INSERT INTO index_level (index_key, effective_date, asof_indicator, line, level)
    SELECT symbol, day, $4, 1, price
    FROM unnest($1::text[], $2::date[], $3::numeric[]) AS given (symbol, day, price)
    ON CONFLICT (index_key, effective_date, asof_indicator, line)
    DO UPDATE SET level = excluded.level WHERE index_level.level IS DISTINCT FROM excluded.level
"""


class Price(NamedTuple):
    """One row of the sample: a symbol's adjusted closing price of a month."""

    symbol: str
    day: dt.date
    price: Decimal


def read_prices() -> list[Price]:
    """The sample prices in the order of the file: by symbol, then by date."""
    with _PRICES.open(newline="") as rows:
        return [
            Price(
                row["symbol"],
                dt.datetime.strptime(f"{row['date']} +0000", "%b %d %Y %z").date(),
                Decimal(row["price"]),
            )
            for row in csv.DictReader(rows)
        ]


async def seed(database_url: str) -> None:
    """Load the sample in one statement; the table must exist."""
    symbols, days, prices = zip(*read_prices(), strict=True)
    connection = await asyncpg.connect(database_url)
    try:
        await connection.execute(_UPSERT, symbols, days, prices, ASOF_INDICATOR)
    finally:
        await connection.close()


def main() -> int:
    """Run the command."""
    url = os.environ.get("DATABASE_URL")
    if not url:
        sys.stderr.write("localstack.seed: set DATABASE_URL\n")
        return 78
    asyncio.run(seed(url))
    return 0


if __name__ == "__main__":
    sys.exit(main())
