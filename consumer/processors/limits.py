"""What becomes of an input whose processor ran into a cap: it failed, and may try again."""

from __future__ import annotations

import signal

from schema.outcome import Failed


def time_limit(seconds: float) -> Failed:
    """Say that a run took longer than its kind allows."""
    return Failed("TimeLimit", f"the processor ran longer than {seconds:g} s")


def memory_limit(limit_bytes: int) -> Failed:
    """Say that a processor asked for more memory than its kind allows."""
    return Failed("MemoryLimit", f"the processor needs more than {limit_bytes >> 20} MiB of memory")


def cancelled() -> Failed:
    """Say that a processor ended as if cancelled, though nobody had cancelled it."""
    return Failed("CancelledError", "the processor cancelled itself")


def process_died(returncode: int) -> Failed:
    """Say how the process of an isolated processor ended: an exit code, or minus a signal."""
    if returncode >= 0:
        return Failed("ProcessDied", f"the processor's process ended with exit code {returncode}")
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = f"signal {-returncode}"
    remedy = " (by the system, if it ran out of memory)" if -returncode == signal.SIGKILL else ""
    return Failed("ProcessDied", f"the processor's process was killed by {name}{remedy}")
