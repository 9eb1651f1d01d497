"""What a measurement costs: CPU of the processes involved, WAL, and transactions that wrote."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Sequence

    import asyncpg

CLIENT_CPU = "client CPU s / 1,000"
POSTGRES_CPU = "Postgres CPU s / 1,000"
STUB_CPU = "SQS stub CPU s / 1,000"
WAL_BYTES = "WAL bytes / input"
COMMITS = "commits / 1,000"

_POSITION = """
SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint AS wal_bytes,
       pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS transactions
"""


@dataclass(frozen=True, slots=True)
class Reading:
    """The counters at one moment."""

    client_seconds: float
    postgres_seconds: float
    stub_seconds: float
    wal_bytes: int
    transactions: int


class Meter:
    """Reads the counters of one cluster, of the client's processes and of the stub."""

    def __init__(
        self, connection: asyncpg.Connection[asyncpg.Record], *, postmaster: int, stub: int | None
    ) -> None:
        self._connection = connection
        self._postmaster = postmaster
        self._stub = stub

    async def read(self, clients: Sequence[int]) -> Reading:
        """Read now; ``clients`` are the pids whose CPU counts as the client's."""
        row = await self._connection.fetchrow(_POSITION)
        assert row is not None, "one row"
        return Reading(
            sum(map(cpu_seconds, clients)),
            tree_seconds(self._postmaster),
            cpu_seconds(self._stub) if self._stub is not None else 0.0,
            row["wal_bytes"],
            row["transactions"],
        )

    def costs(self, before: Reading, after: Reading, *, inputs: int) -> dict[str, float]:
        """Give what lies between two readings, per 1,000 inputs."""
        thousands = inputs / 1000
        costs = {
            CLIENT_CPU: (after.client_seconds - before.client_seconds) / thousands,
            POSTGRES_CPU: (after.postgres_seconds - before.postgres_seconds) / thousands,
            WAL_BYTES: (after.wal_bytes - before.wal_bytes) / inputs,
            COMMITS: (after.transactions - before.transactions) / thousands,
        }
        if self._stub is not None:
            costs[STUB_CPU] = (after.stub_seconds - before.stub_seconds) / thousands
        return costs


def cpu_seconds(pid: int) -> float:
    """Give the CPU time of a process so far."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def exact_cpu_seconds(pid: int) -> float:
    """Give the CPU time of a process's threads as the scheduler counts it, where it tells.

    The usual counters go by ticks of ten milliseconds, which is all that an idle process takes.
    """
    try:
        texts = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    except OSError:
        return cpu_seconds(pid)
    return sum(int(text.split()[0]) for text in texts) / 1e9 if texts else cpu_seconds(pid)


def tree_seconds(pid: int) -> float:
    """Give the CPU time of a server and its workers, those included that have ended."""
    process = psutil.Process(pid)
    times = process.cpu_times()
    total = float(times.user + times.system + times.children_user + times.children_system)
    for child in process.children():
        try:
            own = child.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += float(own.user + own.system)
    return total


def peak_rss_bytes(pid: int) -> int | None:
    """Give the largest resident set a process has had, where the system tells it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    lines = [line.split() for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(lines[0][1]) * 1024 if lines else None
