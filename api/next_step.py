"""What happens next to an input, decided from where it and its entry stand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from api.views import time_text
from schema.lifecycle import (
    TERMINAL_INPUT_STATUSES,
    TERMINAL_JOB_STATUSES,
    EntryState,
    InputStatus,
    JobStatus,
)

if TYPE_CHECKING:
    import datetime as dt


@dataclass(frozen=True, slots=True)
class Standing:
    """An input, its job, and the entry that names it, if one does."""

    state: InputStatus
    job_status: JobStatus
    entry_state: EntryState | None = None
    available_at: dt.datetime | None = None
    worker: str | None = None
    locked_until: dt.datetime | None = None
    parked_reason: str | None = None
    kind: str = ""
    # It is due for a while, and no consumer has any work of its kind.
    kind_is_idle: bool = False
    kind_ran_at: dt.datetime | None = None


def next_step(standing: Standing) -> dict[str, Any] | None:
    """Say what happens next, in the words of the API; nothing does to a final input."""
    if standing.state in TERMINAL_INPUT_STATUSES:
        return None
    lease = {"worker": standing.worker, "leaseUntil": time_text(standing.locked_until)}
    if standing.state is InputStatus.RUNNING:
        return {"action": "running", **lease}
    status = f"job is {standing.job_status}"
    if standing.job_status in TERMINAL_JOB_STATUSES:
        return {"action": "ending", "because": status}
    match standing.entry_state:
        case EntryState.PARKED:
            return {"action": "parked", "because": standing.parked_reason}
        case EntryState.CLAIMED:
            # The lease ran out: the reaper charges the attempt and issues it again.
            return {"action": "lapsed", **lease}
        case EntryState.HELD:
            return {"action": "held", "because": status}
        case EntryState.PENDING | EntryState.SENT if standing.job_status is JobStatus.PAUSED:
            return {"action": "held", "because": status}
        case EntryState.PENDING | EntryState.SENT:
            waits = standing.state is InputStatus.RETRY_WAIT
            step = {
                "action": "retry" if waits else "queued",
                "at": time_text(standing.available_at),
            }
            because = idleness(standing.kind, standing.kind_ran_at)
            return step | {"because": because} if standing.kind_is_idle else step
        case None:
            return {"action": "queued", "because": "it waits for those before it in its group"}


def idleness(kind: str, ran_at: dt.datetime | None) -> str:
    """Say what the database knows of who works on a kind; whether somebody could it does not."""
    nobody = f"no consumer works on kind {kind!r} now"
    if ran_at is None:
        return f"{nobody}, and none is known to have"
    return f"{nobody}; one last did at {time_text(ran_at)}, as far as is known"
