"""The picture of a benchmark shows every line that was measured, and is sound XML."""

from xml.etree import ElementTree as ET

from tests.benchmarks.contest import Line, Sample, Table
from tests.benchmarks.plot import draw
from tests.benchmarks.report import as_document

ABOUT = {"date": "2026-01-10T00:00:00", "cores": 2, "PostgreSQL": "18"}
SVG = "{http://www.w3.org/2000/svg}"


def test_each_line_that_was_measured_is_a_bar_as_long_as_its_median() -> None:
    lines = [
        Line("Haulage, <both> & more", [Sample(50), Sample(60), Sample(100)]),
        Line("bare", [Sample(30), Sample(30), Sample(40)]),
        Line("not here", absent="it is not installed"),
    ]
    table = Table("Drain", "inputs/s", lines, [], "bare")
    root = ET.fromstring(draw(as_document([table], ABOUT)))  # noqa: S314 - our own
    bars = [(bar.get("class"), bar.get("width")) for bar in root.iter(f"{SVG}rect")][1:]
    texts = ["".join(text.itertext()) for text in root.iter(f"{SVG}text")]
    assert bars == [("ours", "216.0"), ("rival", "108.0")]
    assert "Haulage, <both> & more" in texts
    assert "2.00 times" in texts


def test_figures_that_are_all_zero_are_bars_of_no_length() -> None:
    table = Table("Idle", "%", [Line("bare", [Sample(0.0)])], [], "bare", less_is_better=True)
    root = ET.fromstring(draw(as_document([table], ABOUT)))  # noqa: S314 - our own
    texts = ["".join(text.itertext()) for text in root.iter(f"{SVG}text")]
    assert [bar.get("width") for bar in root.iter(f"{SVG}rect")][1:] == ["0.0"]
    assert "Idle %, less is better" in texts
