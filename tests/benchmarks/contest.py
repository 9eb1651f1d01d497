"""A contest: rivals take turns, round by round, and only ratios within a round are compared.

The machine drifts while a benchmark runs: what was measured minutes apart cannot be compared,
what was measured next to each other can.
"""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement: the figure in the contest's unit, and what it cost by the cost's name."""

    figure: float
    costs: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rival:
    """One side of a contest."""

    name: str
    measure: Callable[[], Awaitable[Sample]]


@dataclass(slots=True)
class Line:
    """What a rival reached in all rounds, and why it could not where it did not."""

    name: str
    samples: list[Sample] = field(default_factory=list)
    absent: str | None = None

    @property
    def median(self) -> float:
        """Give the median figure."""
        return statistics.median(sample.figure for sample in self.samples)

    def ratio_to(self, other: Line) -> float:
        """Give the median of the ratios of figures taken in the same round."""
        pairs = zip(self.samples, other.samples, strict=True)
        return statistics.median(mine.figure / theirs.figure for mine, theirs in pairs)

    def cost(self, name: str) -> float | None:
        """Give the median of a cost, if it was taken."""
        costs = [sample.costs[name] for sample in self.samples if name in sample.costs]
        return statistics.median(costs) if costs else None


@dataclass(slots=True)
class Table:
    """The result of a contest; the first line that is present is what ratios refer to."""

    title: str
    unit: str
    lines: list[Line]
    notes: list[str]
    baseline: str
    less_is_better: bool = False

    @property
    def cost_names(self) -> list[str]:
        """Give the names of all costs, in the order in which they came up."""
        names: dict[str, None] = {}
        for line in self.lines:
            for sample in line.samples:
                names |= dict.fromkeys(sample.costs)
        return list(names)

    def baseline_line(self) -> Line | None:
        """Give the line that ratios refer to."""
        found = [line for line in self.lines if line.name == self.baseline and line.samples]
        return found[0] if found else None


async def compete(
    title: str,
    unit: str,
    rivals: Sequence[Rival],
    *,
    rounds: int,
    baseline: str,
    notes: Sequence[str] = (),
    absent: Mapping[str, str] | None = None,
    less_is_better: bool = False,
) -> Table:
    """Let the rivals take turns; each round begins with another one."""
    lines = {rival.name: Line(rival.name) for rival in rivals}
    for number in range(rounds):
        start = number % len(rivals)
        for rival in [*rivals[start:], *rivals[:start]]:
            sample = await rival.measure()
            lines[rival.name].samples.append(sample)
            say(f"  {title}, round {number + 1} of {rounds}: {rival.name}: {sample.figure:,.4g}")
    missing = [Line(name, absent=reason) for name, reason in (absent or {}).items()]
    every = [*lines.values(), *missing]
    return Table(title, unit, every, list(notes), baseline, less_is_better)


def say(text: str) -> None:
    """Tell whoever waits how far it is."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
