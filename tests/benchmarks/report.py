"""The result as a page for people and as JSON for programs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.benchmarks.contest import Line, Table

_TEN, _TENTH = 10, 0.1


def as_json(tables: Sequence[Table], about: Mapping[str, object]) -> str:
    """Give every sample of every line."""
    document = {
        "about": dict(about),
        "tables": [
            {
                "title": table.title,
                "unit": table.unit,
                "ratios are to": table.baseline,
                "notes": table.notes,
                "lines": [
                    {"name": line.name, "absent": line.absent}
                    if line.absent
                    else {
                        "name": line.name,
                        "median": line.median,
                        "ratio": _ratio(line, table),
                        "rounds": [
                            {"figure": sample.figure, "costs": dict(sample.costs)}
                            for sample in line.samples
                        ],
                    }
                    for line in table.lines
                ],
            }
            for table in tables
        ],
    }
    return json.dumps(document, indent=2) + "\n"


def as_markdown(tables: Sequence[Table], about: Mapping[str, object]) -> str:
    """Give the page."""
    introduction = (
        f"Written by `{about['command']}` on {about['date']}. Figures are medians of rounds in"
        " which all lines of a table took turns; a ratio is the median of the ratios within the"
        " rounds. Figures move with the machine, ratios much less. One part alone:"
        " `--only adaptive`; a short round, which is written elsewhere: `--quick`."
    )
    parts = ["# Benchmarks", "", introduction, ""]
    for table in tables:
        parts += [f"## {table.title}", "", *_table(table), "", *(f"- {n}" for n in table.notes), ""]
    parts += ["## Where it ran", "", "| | |", "|---|---|"]
    for name, value in about.items():
        pairs = value.items() if isinstance(value, dict) else None
        text = ", ".join(f"{key} {given}" for key, given in pairs) if pairs else str(value)
        parts.append(f"| {name} | {text} |")
    return "\n".join(parts) + "\n"


def _table(table: Table) -> list[str]:
    names = ["", table.unit, "lowest to highest", "ratio", *table.cost_names]
    rows = [f"| {' | '.join(names)} |", f"|---|{'---:|' * (len(names) - 1)}"]
    for line in table.lines:
        if line.absent:
            rows.append(f"| {line.name} | {line.absent} |{' |' * (len(names) - 2)}")
            continue
        figures = [sample.figure for sample in line.samples]
        ratio = _ratio(line, table)
        cells = [
            line.name,
            _number(line.median),
            f"{_number(min(figures))} to {_number(max(figures))}",
            "" if ratio is None else f"{ratio:.2f}",
            *(_number(line.cost(name)) for name in table.cost_names),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def _ratio(line: Line, table: Table) -> float | None:
    baseline = table.baseline_line()
    return line.ratio_to(baseline) if baseline else None


def _number(value: float | None) -> str:
    if value is None:
        return ""
    if value >= _TEN:
        return f"{value:,.0f}"
    return f"{value:.2f}" if value >= _TENTH else f"{value:.4f}"
