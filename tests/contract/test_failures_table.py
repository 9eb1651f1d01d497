"""The table of failures names tests that exist."""

import re
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
FAULTS = CHECKOUT / "tests" / "integration" / "faults"
TABLE = (CHECKOUT / "docs" / "failures.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in TABLE.splitlines()
    if line.startswith("| ") and not line.startswith("| failure elsewhere")
]


def file_named(name: str) -> Path:
    bare = name.strip("` ")
    if not bare.endswith(".py"):
        return FAULTS / f"test_{bare}.py"
    return CHECKOUT / bare if "/" in bare else CHECKOUT / "tests" / "integration" / bare


def test_the_table_is_read() -> None:
    assert len(ROWS) > 60


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_what_a_row_names_exists_or_the_row_says_why_not(row: list[str]) -> None:
    _, holds, proof = row
    if not proof:
        assert "does not apply" in holds or "to come" in holds
        return
    for part in proof.split(";"):
        name, _, tests = part.partition(":")
        source = file_named(name).read_text()
        for test in filter(None, (test.strip(" …") for test in tests.split(","))):
            if test != "all":
                assert re.search(rf"def test_{re.escape(test)}", source), f"{name}: {test}"
