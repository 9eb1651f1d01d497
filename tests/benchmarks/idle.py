"""What the platform costs while nobody asks anything of it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import psutil

from tests.benchmarks import bare
from tests.benchmarks.contest import Line, Sample, Table, say
from tests.benchmarks.meter import exact_cpu_seconds
from tests.stubs.sqs.server import SqsStub

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.benchmarks.stage import Place, Stage

SESSIONS, SQS_CALLS, TRANSACTIONS = (
    "its Postgres sessions, %", "SQS calls / hour", "transactions / hour",
)  # fmt: skip
_MODULES = ("api", "dispatcher", "consumer")
_HOUR_SECONDS = 3_600
# What a process does once, soon after its start, is no idling.
_SETTLE_SECONDS = 5.0
_BASELINE = "bare asyncpg loop with NOTIFY"
_OWN_SESSIONS = """
SELECT pid FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
"""
_TRANSACTIONS = """
SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()
"""


@dataclass(frozen=True, slots=True)
class _Reading:
    """The counters of one line at one moment; CPU in seconds, by process."""

    cpu: Mapping[str, float]
    sessions: Mapping[int, float]
    transactions: int
    calls: int
    at: float


@dataclass(frozen=True, slots=True)
class _Idler:
    """One line: where it runs, its processes by name, and the calls that its queue counts."""

    name: str
    place: Place
    pids: Mapping[str, int]
    calls: Counter[str] = field(default_factory=Counter)

    async def read(self) -> _Reading:
        """Read now. What is read itself is one of the transactions."""
        transactions = await self.place.connection.fetchval(_TRANSACTIONS)
        sessions = await self.place.connection.fetch(_OWN_SESSIONS)
        return _Reading(
            {name: exact_cpu_seconds(pid) for name, pid in self.pids.items()},
            {
                row["pid"]: exact_cpu_seconds(row["pid"])
                for row in sessions
                if psutil.pid_exists(row["pid"])
            },
            transactions,
            self.calls.total(),
            time.perf_counter(),
        )

    def sample(self, before: _Reading, after: _Reading) -> Sample:
        """Give what lies between two readings, but for the calls."""
        seconds = after.at - before.at
        shares = {
            f"{name}, %": (after.cpu[name] - before.cpu[name]) / seconds * 100 for name in self.pids
        }
        sessions = sum(
            spent - before.sessions.get(pid, 0.0) for pid, spent in after.sessions.items()
        )
        hours = seconds / _HOUR_SECONDS
        return Sample(
            sum(shares.values()),
            {
                **(shares if len(shares) > 1 else {}),
                SESSIONS: sessions / seconds * 100,
                TRANSACTIONS: (after.transactions - before.transactions) / hours,
            },
        )


async def contest(stage: Stage, *, rounds: int, seconds: float) -> Table:
    """Leave API, dispatcher and consumer alone: all lines side by side, since none does much."""
    async with AsyncExitStack() as stack:
        # In this process, so that its calls can be counted and its CPU is nobody's.
        stub = await stack.enter_async_context(SqsStub())
        idlers: list[_Idler] = []
        for label, mode in (("outbox", "outbox"), ("SQS", "sqs-consumer")):
            place = await stage.place(f"idle_{label.lower()}", mode=mode)
            if mode != "outbox":
                place.environment["AWS_ENDPOINT_URL"] = stub.endpoint_url
                place.environment["HAULAGE_QUEUE_URL"] = stub.create_queue(place.name)
            stack.callback(stage.stop, place)
            # In a thread, because they wait for the stub, which runs in our loop.
            await asyncio.to_thread(_start, stage, place)
            pids = {module: place.pids_of(module)[0] for module in _MODULES}
            calls = Counter() if mode == "outbox" else stub.calls
            idlers.append(_Idler(f"Haulage, {label}", place, pids, calls))
        loop_place = await bare.bare_place(stage, "idle_bare")
        loop = await bare.start(loop_place, "listen")
        stack.push_async_callback(bare.stop, [loop])
        idlers.append(_Idler(_BASELINE, loop_place, {"loop": loop.pid}))
        await asyncio.sleep(_SETTLE_SECONDS)
        lines = [Line(idler.name) for idler in idlers]
        first = before = [await idler.read() for idler in idlers]
        for number in range(rounds):
            await asyncio.sleep(seconds)
            after = [await idler.read() for idler in idlers]
            for line, idler, early, late in zip(lines, idlers, before, after, strict=True):
                line.samples.append(idler.sample(early, late))
            before = after
            say(f"  Idle, round {number + 1} of {rounds}")
        # A call lasts longer than a round: they are counted over all of them.
        for line, early, late in zip(lines, first, before, strict=True):
            an_hour = (late.calls - early.calls) / (late.at - early.at) * _HOUR_SECONDS
            last = line.samples[-1]
            line.samples[-1] = replace(last, costs={**last.costs, SQS_CALLS: an_hour})
        # Stopping waits for processes, some of which wait for the stub in this loop.
        await asyncio.to_thread(_stop, stage, [idler.place for idler in idlers])
    return Table(
        "Idle",
        "% of a core",
        lines,
        [
            (
                f"CPU of API, dispatcher and consumer together in {seconds:g} s without a request"
                " or a job, all lines side by side; less is better. Settings are the defaults."
            ),
            f"Calls to SQS are counted over all rounds, {rounds * seconds:g} s; each lasts 20 s.",
            "The bare loop is one process, which asks for work once a second.",
        ],
        _BASELINE,
        less_is_better=True,
    )


def _start(stage: Stage, place: Place) -> None:
    for module in _MODULES:
        stage.run(place, module)


def _stop(stage: Stage, places: list[Place]) -> None:
    for place in places:
        stage.stop(place)
