"""Rows of redrives, dead letters, histories and parked work as the JSON that clients see."""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING, Any

from api.views import error_document, s3_path_of, settled_text, time_text, why_document
from infra.redrive_choice import REDRIVABLE
from schema.lifecycle import InputStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sqlalchemy import Row

    from infra.redrive import Progress

_MILLISECOND = dt.timedelta(milliseconds=1)
_SUCCESSES = frozenset({InputStatus.SUCCEEDED, InputStatus.SKIPPED})


def accepted_document(
    progress: Progress, matched: int, *, job: str | None, base: str
) -> dict[str, Any]:
    """Give a redrive that was just asked for, of which ``matched`` were counted."""
    return {
        "redriveId": str(progress.redrive_id),
        "jobId": job,
        "matched": max(matched, progress.matched),
        "redriven": progress.redriven,
        "status": _redrive_status(
            is_over=progress.finished, stopped_reason=progress.stopped_reason
        ),
        "stoppedReason": progress.stopped_reason,
        "links": {"self": f"{base}/redrives/{progress.redrive_id}"},
    }


def redrive_document(row: Row[Any], *, job: str | None, base: str) -> dict[str, Any]:
    """Give a redrive and how far it has come; ``job`` is the one that it is about, if one is."""
    return {
        "redriveId": str(row.id),
        "status": _redrive_status(
            is_over=row.finished_at is not None, stopped_reason=row.stopped_reason
        ),
        "jobId": job,
        "owner": row.owner,
        "requestedBy": row.requested_by,
        "requestedAt": time_text(row.created_at),
        "filter": _filter(json.loads(row.filter), job),
        "matched": row.matched,
        "redriven": row.redriven,
        "stoppedReason": row.stopped_reason,
        "finishedAt": time_text(row.finished_at),
        "links": {"self": f"{base}/redrives/{row.id}"},
    }


def _redrive_status(*, is_over: bool, stopped_reason: str | None) -> str:
    if not is_over:
        return "RUNNING"
    return "DONE" if stopped_reason is None else "STOPPED"


def _filter(stored: Mapping[str, Any], job: str | None) -> dict[str, Any]:
    """Give what was asked for in the words of the API; ten thousand ordinals are only counted."""
    shown = {name: value for name, value in stored.items() if name not in {"job", "owner"}}
    if "job" in stored:
        shown["jobId"] = job
    if "ordinals" in shown:
        shown["ordinals"] = len(shown["ordinals"])
    return shown


def letter_document(row: Row[Any], *, base: str) -> dict[str, Any]:
    """Give a dead letter."""
    return {
        "jobId": row.job_key,
        "ordinal": row.ordinal,
        "owner": row.owner,
        "kind": row.kind,
        "input": json.loads(row.body),
        "generation": row.generation,
        "attempts": row.attempts,
        "maxAttempts": row.max_attempts,
        "worker": row.worker,
        "error": error_document(row.error_class, row.error_message),
        "fingerprint": row.fingerprint,
        "diedAt": time_text(row.died_at),
        "correlationId": row.correlation_id,
        "links": {
            "input": f"{base}/jobs/{row.job_key}/inputs/{row.ordinal}",
            "reprocess": f"{base}/dlq/{row.job_key}/{row.ordinal}/reprocess",
        },
    }


def cause_document(row: Row[Any]) -> dict[str, Any]:
    """Give a group of dead letters with one fingerprint."""
    return {
        "fingerprint": row.fingerprint,
        "kind": row.kind,
        "error": error_document(row.error_class, row.error_message),
        "count": row.many,
        "jobs": row.jobs,
        "firstDiedAt": time_text(row.first_died_at),
        "lastDiedAt": time_text(row.last_died_at),
    }


def history_document(
    row: Row[Any], attempts: Iterable[Row[Any]], *, now: dict[str, Any] | None, base: str
) -> dict[str, Any]:
    """Give an input with its attempts; ``now`` is what happens next to it."""
    result = json.loads(row.result) if row.result is not None else None
    # An attempt and what the input says of it are one commit; what came after the row was read
    # is left to the next reading.
    history = [
        _attempt(each)
        for each in attempts
        if (each.generation, each.attempt) <= (row.generation, row.attempts)
    ]
    if row.state in _SUCCESSES and row.settled_at is not None:
        history.append(_success(row))
    return {
        "jobId": row.job_key,
        "jobStatus": row.job_status,
        "ordinal": row.ordinal,
        "owner": row.owner,
        "kind": row.kind,
        "correlationId": row.correlation_id,
        "status": row.state,
        "input": json.loads(row.body),
        "s3Path": s3_path_of(result),
        "reused": row.reused,
        "result": result,
        "generation": row.generation,
        "attempts": row.attempts,
        "maxAttempts": row.max_attempts,
        **why_document(row.state, row.error_class, row.error_message),
        "fingerprint": row.fingerprint,
        "diedAt": time_text(row.died_at),
        "settledAt": settled_text(row),
        "history": history,
        "next": now,
        "redrive": _how_to_redrive(row, base),
    }


def _attempt(row: Row[Any]) -> dict[str, Any]:
    return {
        "generation": row.generation,
        "number": row.attempt,
        "outcome": "WORKER_LOST" if row.status == InputStatus.PENDING else row.status,
        "worker": row.worker,
        "error": error_document(row.error_class, row.error_message),
        "startedAt": time_text(row.started_at),
        "endedAt": time_text(row.ended_at),
        "elapsedMs": row.elapsed_ms,
    }


def _success(row: Row[Any]) -> dict[str, Any]:
    return {
        "generation": row.generation,
        "number": row.attempts,
        "outcome": row.state,
        "worker": None,
        "error": None,
        "startedAt": time_text(_began(row.settled_at, row.elapsed_ms)),
        "endedAt": time_text(row.settled_at),
        "elapsedMs": row.elapsed_ms,
    }


def _began(ended_at: dt.datetime, elapsed_ms: int | None) -> dt.datetime | None:
    return None if elapsed_ms is None else ended_at - elapsed_ms * _MILLISECOND


def _how_to_redrive(row: Row[Any], base: str) -> dict[str, Any] | None:
    if row.state not in REDRIVABLE:
        return None
    return {
        "method": "POST",
        "href": f"{base}/jobs/{row.job_key}/reprocess",
        "body": {"statuses": [row.state], "ordinals": [row.ordinal]},
    }


def message_document(row: Row[Any]) -> dict[str, Any]:
    """Give a parked message."""
    return {
        "type": "message",
        "id": row.id,
        "isOpen": row.resolved_at is None,
        "queue": row.queue,
        "messageId": row.message_id,
        "reason": row.reason,
        "body": row.body,
        "attributes": json.loads(row.attributes),
        "entryId": row.entry_id,
        "receiveCount": row.receive_count,
        "parkedAt": time_text(row.parked_at),
        "resolution": row.resolution,
        "resolvedAt": time_text(row.resolved_at),
    }


def entry_document(row: Row[Any]) -> dict[str, Any]:
    """Give a parked entry."""
    return {
        "type": "entry",
        "id": row.id,
        "isOpen": True,
        "entryType": row.type,
        "jobId": row.job_key,
        "kind": row.kind,
        "firstOrdinal": row.first_ordinal,
        "lastOrdinal": row.last_ordinal,
        "unfinished": row.unfinished,
        "reason": row.parked_reason,
        "relayAttempts": row.relay_attempts,
        "createdAt": time_text(row.created_at),
        "correlationId": row.correlation_id,
    }
