"""The result as a page for people, as JSON for programs, and as a picture."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.benchmarks.plot import draw

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tests.benchmarks.contest import Line, Table

_TEN, _TENTH = 10, 0.1


def as_document(tables: Sequence[Table], about: Mapping[str, object]) -> dict[str, Any]:
    """Give every sample of every line, as what JSON can hold."""
    return {
        "about": dict(about),
        "tables": [
            {
                "title": table.title,
                "unit": table.unit,
                "less is better": table.less_is_better,
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


def write(folder: Path, name: str, page: str, document: Mapping[str, Any]) -> None:
    """Write the page, the JSON beside it, and the picture drawn from that."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.md").write_text(page)
    (folder / f"{name}.json").write_text(json.dumps(document, indent=2) + "\n")
    (folder / f"{name}.svg").write_text(draw(document))


def as_markdown(
    tables: Sequence[Table],
    about: Mapping[str, object],
    *,
    again: str = "",
    picture: str | None = None,
    lead: Sequence[str] = (),
) -> str:
    """Give the page: ``again`` says how to run it anew, ``lead`` stands before the tables, and a
    ``picture`` lies beside it.
    """
    introduction = (
        f"Written by `{about['command']}` on {about['date']}. Figures are medians of rounds in"
        " which all lines of a table took turns; a ratio is to the line of ratio 1.00, and the"
        " median of the ratios within the rounds, which need not be the ratio of the medians."
        " Figures move with the machine, ratios much less."
    )
    parts = ["# Benchmarks", "", introduction, ""]
    if again:
        parts += [again, ""]
    if picture is not None:
        parts += [f"![The medians as bars]({picture})", ""]
    parts += lead
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
            number(line.median),
            f"{number(min(figures))} to {number(max(figures))}",
            "" if ratio is None else f"{ratio:.2f}",
            *(number(line.cost(name)) for name in table.cost_names),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def _ratio(line: Line, table: Table) -> float | None:
    baseline = table.baseline_line()
    if baseline is None or not all(sample.figure for sample in baseline.samples):
        return None
    return line.ratio_to(baseline)


def number(value: float | None) -> str:
    """Write a figure as tables do."""
    if value is None:
        return ""
    if value >= _TEN:
        return f"{value:,.0f}"
    return f"{value:.2f}" if value >= _TENTH else f"{value:.4f}"
