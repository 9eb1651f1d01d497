"""How a consumer follows a kind whose inputs turn from 1 ms to 1 s and back."""

from __future__ import annotations

import asyncio
import json
import re
import statistics
from typing import TYPE_CHECKING, NamedTuple

from schema.chunking import chunk_size
from tests.benchmarks.contest import Line, Sample, Table, say
from tests.benchmarks.jobs import drain, job
from tests.benchmarks.stage import opener
from tests.plugin_example.paced import PACED

if TYPE_CHECKING:
    from tests.benchmarks.stage import Place, Stage

SLOTS, PREFETCH_INPUTS, RECEIVE_ENTRIES = 16, 2_000, 20
_LOOK_SECONDS = 0.25
_GAUGE = re.compile(
    r"^haulage_consumer_(in_flight|target|limit)(?:\{[^}]*\})? (\S+)$", re.MULTILINE
)


class Phase(NamedTuple):
    """A job, chunked by the pace that is known when it begins."""

    name: str
    milliseconds: int
    inputs: int


PHASES = (
    Phase("1 ms, at first", 1, 20_000),
    Phase("1 s, just turned", 1_000, 160),
    Phase("1 s, known", 1_000, 160),
    Phase("1 ms, just turned", 1, 10_000),
    Phase("1 ms, again", 1, 20_000),
)


async def contest(stage: Stage, *, rounds: int) -> Table:
    """Run the phases one after the other in one consumer, in outbox mode."""
    place = await stage.place(
        "adaptive",
        mode="outbox",
        kinds="tests.plugin_example.paced:PACED",
        concurrency=SLOTS,
        prefetch_inputs=PREFETCH_INPUTS,
        receive_entries=RECEIVE_ENTRIES,
    )
    stage.run(place, "consumer")
    stage.run(place, "dispatcher")
    lines = {phase.name: Line(phase.name) for phase in PHASES}
    try:
        for number in range(rounds):
            for phase in PHASES:
                sample = await _run(place, phase)
                lines[phase.name].samples.append(sample)
                told = ", ".join(f"{name} {value:,.4g}" for name, value in sample.costs.items())
                say(f"  round {number + 1} of {rounds}: {phase.name}: {sample.figure:,.4g}; {told}")
    finally:
        stage.stop(place)
    return Table(
        "Adapting to inputs that take 1 ms, then 1 s, then 1 ms",
        "inputs/s",
        list(lines.values()),
        [
            (
                "One consumer, outbox mode, in the order of the lines; each is a job, "
                + ", ".join(f"{phase.inputs:,}" for phase in PHASES)
                + " inputs."
            ),
            (
                f"concurrency = {SLOTS}, prefetch_inputs = {PREFETCH_INPUTS:,},"
                f" receive_entries = {RECEIVE_ENTRIES}."
            ),
            "The ideal is slots / time. Inputs of 1 ms are bound by the CPU before that.",
            (
                "A chunk follows the pace that consumers share, which goes half of the way to what"
                " they measured every second while it is far off, and every ten seconds else."
            ),
            (
                f"In hand, wanted and slots are read every {_LOOK_SECONDS} s: what a consumer had"
                " claimed at most and at last, what it found worth having at last, and how many"
                " inputs ran at once."
            ),
        ],
        baseline="",
    )


async def _run(place: Place, phase: Phase) -> Sample:
    rows = await place.connection.fetch(
        "SELECT input_ms FROM kind_pace WHERE kind = $1", PACED.name
    )
    chunk = chunk_size(rows[0]["input_ms"] if rows else None, PACED.chunk)
    bodies = json.dumps([{"milliseconds": phase.milliseconds}] * phase.inputs)
    seen: list[dict[str, float]] = []
    watching = asyncio.create_task(_watch(place, seen))
    drained = await drain(place, [job(place, PACED.name, phase.inputs, bodies, chunk_size=chunk)])
    watching.cancel()
    assert seen, "a phase is longer than a look"
    # Of the last looks, half of the work is done already and nothing more is taken in.
    late = seen[len(seen) // 2 :]
    ideal = SLOTS / (phase.milliseconds / 1_000)
    return Sample(
        drained.figure,
        {
            "of the ideal": drained.figure / ideal,
            "inputs a chunk": chunk,
            "most in hand": max(look["in_flight"] for look in seen),
            "in hand": statistics.median(look["in_flight"] for look in late),
            "wanted in hand": seen[-1]["target"],
            "slots": seen[-1]["limit"],
        },
    )


async def _watch(place: Place, seen: list[dict[str, float]]) -> None:
    """Read the consumer's gauges until cancelled."""
    while True:
        page = await asyncio.to_thread(_page, place.environment["HAULAGE_URL"])
        seen.append({name: float(value) for name, value in _GAUGE.findall(page)})
        await asyncio.sleep(_LOOK_SECONDS)


def _page(url: str) -> str:
    with opener().open(f"{url}/metrics", timeout=10) as answer:
        return str(answer.read().decode())
