"""The result as a picture: ``python -m tests.benchmarks.plot docs/benchmarks.json`` draws it anew.

One panel a table, one bar a line, from the JSON alone. The picture brings its own paper, so that it
is readable on any page; a reader's dark scheme is honoured.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Mapping

_WIDTH, _MARGIN = 900, 20
_ROW, _BAR, _PANEL_HEAD, _PANEL_FOOT, _HEAD = 19, 12, 26, 14, 62
_BARS_AT, _BARS_WIDTH = 300, 360
_VALUES_AT = _BARS_AT + _BARS_WIDTH + 12
_OURS = "Haulage, "
_TEN = 10

_STYLE = """
  .paper { fill: #ffffff } .ours { fill: #2f6fb2 } .rival { fill: #a8b0b8 }
  .range { stroke: #1f2328; stroke-width: 1.2 } .axis { stroke: #c4cad0 }
  text { font: 12px system-ui, -apple-system, "Segoe UI", "Liberation Sans", sans-serif;
         fill: #1f2328 }
  .title { font-weight: 600; font-size: 13px } .name { font-size: 17px; font-weight: 600 }
  .quiet { fill: #59636e } .label { text-anchor: end }
  @media (prefers-color-scheme: dark) {
    .paper { fill: #0d1117 } .ours { fill: #58a6ff } .rival { fill: #5b636d }
    .range { stroke: #e6edf3 } .axis { stroke: #3d444d } text { fill: #e6edf3 }
    .quiet { fill: #9198a1 }
  }
"""


def draw(document: Mapping[str, Any]) -> str:
    """Give the picture of a result as SVG."""
    parts: list[str] = []
    top = _HEAD
    for table in document["tables"]:
        lines = [line for line in table["lines"] if "rounds" in line]
        if lines:
            parts += _panel(table, lines, top)
            top += _PANEL_HEAD + len(lines) * _ROW + _PANEL_FOOT
    about = document["about"]
    where = f"{about['date'][:10]}, {about['cores']} cores, PostgreSQL {about['PostgreSQL']}"
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top + 6}"'
        f' width="{_WIDTH}" height="{top + 6}" role="img">',
        "<title>Haulage, measured</title>",
        f"<style>{_STYLE}</style>",
        f'<rect class="paper" width="{_WIDTH}" height="{top + 6}" rx="6"/>',
        _text(_MARGIN, 28, "Haulage, measured", "name"),
        _text(
            _MARGIN,
            47,
            f"Medians, the range of all rounds, and the ratio within a round. {where}",
            "quiet",
        ),
    ]
    return "\n".join([*head, *parts, "</svg>"]) + "\n"


def _panel(table: Mapping[str, Any], lines: list[dict[str, Any]], top: int) -> list[str]:
    unit = table["unit"] + (", less is better" if table["less is better"] else "")
    longest = max(sample["figure"] for line in lines for sample in line["rounds"])
    scale = _BARS_WIDTH / longest if longest else 0.0
    parts = [
        f'<text class="title" x="{_MARGIN}" y="{top + 14}">{escape(table["title"])}'
        f' <tspan class="quiet" font-weight="400">{escape(unit)}</tspan></text>'
    ]
    rows_at = top + _PANEL_HEAD
    for number, line in enumerate(lines):
        parts += _bar(line, rows_at + number * _ROW, scale)
    end = rows_at + len(lines) * _ROW
    parts.append(f'<path class="axis" d="M{_BARS_AT} {rows_at}V{end}"/>')
    return parts


def _bar(line: Mapping[str, Any], top: int, scale: float) -> list[str]:
    figures = [sample["figure"] for sample in line["rounds"]]
    middle, baseline = top + _ROW / 2, top + _ROW / 2 + 4
    low, high = _BARS_AT + min(figures) * scale, _BARS_AT + max(figures) * scale
    ratio = "" if line["ratio"] is None else f"{line['ratio']:.2f} times"
    value = line["median"]
    figure = f"{value:,.0f}" if value >= _TEN else f"{value:.2f}"
    return [
        _text(_BARS_AT - 8, baseline, line["name"], "label"),
        f'<rect class="{"ours" if line["name"].startswith(_OURS) else "rival"}" x="{_BARS_AT}"'
        f' y="{middle - _BAR / 2:g}" width="{value * scale:.1f}" height="{_BAR}"/>',
        f'<path class="range" d="M{low:.1f} {middle:g}H{high:.1f}"/>',
        _text(_VALUES_AT, baseline, figure),
        _text(_VALUES_AT + 68, baseline, ratio, "quiet"),
    ]


def _text(x: float, y: float, text: str, style: str = "") -> str:
    chosen = f' class="{style}"' if style else ""
    return f'<text{chosen} x="{x:g}" y="{y:g}">{escape(text)}</text>'


def main() -> int:
    """Run the command: the picture is written beside its JSON."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.plot", description=__doc__)
    parser.add_argument("json", type=Path)
    source: Path = parser.parse_args().json
    source.with_suffix(".svg").write_text(draw(json.loads(source.read_text())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
