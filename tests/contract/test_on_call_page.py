"""Whoever is on call can paste the SQL of docs/on-call.md, and its links lead somewhere."""

import re
import textwrap
from pathlib import Path

import pytest
from sqlalchemy import text

from infra.database import Database
from schema.outcome import Lapsed, Refused, Succeeded
from tests.platform import Platform
from tests.steps import claim_all, settle_as

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = ("on-call.md", "logs.md", "observability.md", "running.md")


def blocks() -> list[str]:
    found = re.findall(
        r"^ *```sql\n(.*?)^ *```$", (DOCS / "on-call.md").read_text(), re.DOTALL | re.MULTILINE
    )
    return [textwrap.dedent(block) for block in found]


async def test_every_query_runs_and_those_on_what_failed_find_it(
    platform: Platform, database: Database, subtests: pytest.Subtests
) -> None:
    await platform.submit(40, max_attempts=1)
    dying, lapsing, claimed, _ = await claim_all(database)
    await settle_as(database, dying, Refused("Bad", "x"), *[Succeeded()] * 9)
    await settle_as(database, lapsing, Lapsed("consumer-1"))
    await platform.rows(
        "UPDATE outbox SET locked_until = now() - interval '1 minute' WHERE id = :id RETURNING id",
        id=claimed.entry_id,
    )
    queries = blocks()
    assert len(queries) > 10
    found = {}
    for number, query in enumerate(queries):
        with subtests.test(query=query):
            found[number] = await database.fetch(text(query.replace(":", r"\:")))
    rows_of = {queries[number]: rows for number, rows in found.items()}
    for words in ("from dead_letter where", "group by worker", "as lapsed_for"):
        (rows,) = [rows for query, rows in rows_of.items() if words in query]
        assert rows, words


def test_its_metrics_are_named_as_prometheus_shows_them() -> None:
    page = (DOCS / "observability.md").read_text()
    shown = set()
    for row in re.findall(r"^\| `haulage\..*$", page.partition("## Metrics")[2], re.MULTILINE):
        _, metrics, kind_and_unit, *_ = row.split("|")
        words = kind_and_unit.replace(",", " ").split()
        ending = "_total" if "counter" in words else "_seconds" if "s" in words else ""
        for metric in re.findall(r"`(.*?)`", metrics):
            shown.add(metric.replace(".", "_") + ending)
    used = set(re.findall(r"haulage_[a-z_]+", (DOCS / "on-call.md").read_text()))
    assert len(used) > 10
    assert used <= shown


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    links = re.findall(r"\]\(([^)#:]*)(#[^)]*)?\)", (DOCS / page).read_text())
    assert links
    for target, anchor in links:
        path = DOCS / (target or page)
        assert path.exists(), target
        if anchor:
            heads = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}
            assert anchor[1:] in slugs, anchor
