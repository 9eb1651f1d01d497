"""Rows as the JSON that clients see."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from schema.lifecycle import TERMINAL_INPUT_STATUSES, InputStatus

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterable

    from sqlalchemy import Row

    from schema.kinds import Kind

# What stands beside the own fields of an input, or in place of them
# (docs/decisions/what-an-input-calls-its-own.md).
_OURS = frozenset({"input", "s3Path", "status", "error", "reason"})


def job_document(row: Row[Any], *, kind: Kind | None, base: str) -> dict[str, Any]:
    """Give a job as the contract has it, then what goes beyond; ``base`` is where ``/jobs`` is."""
    address = f"{base}/jobs/{row.key}"
    done, failed = row.succeeded + row.skipped, row.dlq + row.not_found
    ended = done + failed + row.cancelled + row.expired
    # The counters and the leases are of one snapshot; the guard is for repairs under way.
    pending = max(0, row.total - ended - row.running)
    content = None
    if row.bodies is not None and row.pruned_at is None:
        content = _data_content(row, kind)
    document: dict[str, Any] = {
        "jobId": row.key,
        "status": row.status,
        "total": row.total,
        "pending": pending,
        "running": row.running,
        "done": done,
        "failed": failed,
        "filesGenerated": row.files_generated,
        "filesReused": row.files_reused,
        "errorMessage": row.error_message,
        "dataContent": content,
    }
    if content is None:
        size = "large" if row.is_large else "many"
        reason = f"{row.total} inputs are too {size} for one answer: read them page by page"
        if row.pruned_at is not None:
            reason = "the inputs are removed: the time for which they are kept is over"
        document["dataContentOmitted"] = {
            "reason": reason,
            "href": f"{address}/inputs",
        }
    document |= {
        "kind": row.kind,
        "owner": row.owner,
        "priority": row.priority,
        "policy": {
            "maxAttempts": row.max_attempts,
            "failFast": row.fail_fast,
            "toleratedFailures": row.tolerated,
        },
        "correlationId": row.correlation_id,
        "requestedAt": time_text(row.requested_at),
        "scheduledFor": time_text(row.scheduled_for),
        "expiresAt": time_text(row.expires_at),
        "startedAt": time_text(row.started_at),
        "finishedAt": time_text(row.finished_at),
        "metadata": json.loads(row.metadata),
        "counts": {
            "pending": pending,
            "running": row.running,
            "succeeded": row.succeeded,
            "skipped": row.skipped,
            "notFound": row.not_found,
            "dlq": row.dlq,
            "cancelled": row.cancelled,
            "expired": row.expired,
        },
        "links": _links(address),
    }
    return document


def summary_document(row: Row[Any], *, base: str) -> dict[str, Any]:
    """Give a job as lists show it."""
    done, failed = row.succeeded + row.skipped, row.dlq + row.not_found
    return {
        "jobId": row.key,
        "status": row.status,
        "kind": row.kind,
        "owner": row.owner,
        "priority": row.priority,
        "total": row.total,
        "unfinished": row.total - done - failed - row.cancelled - row.expired,
        "done": done,
        "failed": failed,
        "filesGenerated": row.files_generated,
        "filesReused": row.files_reused,
        "errorMessage": row.error_message,
        "correlationId": row.correlation_id,
        "requestedAt": time_text(row.requested_at),
        "startedAt": time_text(row.started_at),
        "finishedAt": time_text(row.finished_at),
        "links": _links(f"{base}/jobs/{row.key}"),
    }


def input_document(row: Row[Any]) -> dict[str, Any]:
    """Give one input of a job."""
    result = json.loads(row.result) if row.result is not None else None
    return {
        "ordinal": row.ordinal,
        "status": row.state,
        "input": json.loads(row.body),
        "s3Path": s3_path_of(result),
        "reused": row.reused,
        "result": result,
        "attempts": row.attempts,
        **why_document(row.state, row.error_class, row.error_message),
        "elapsedMs": row.elapsed_ms,
        "settledAt": settled_text(row),
        "availableAt": time_text(row.available_at),
    }


def s3_path_of(result: Any) -> str | None:
    """Give the file that a result names; what else a processor calls so is in the result alone."""
    path = result.get("s3Path") if isinstance(result, dict) else None
    return path if isinstance(path, str) else None


def _data_content(row: Row[Any], kind: Kind | None) -> list[dict[str, Any]]:
    names = tuple(kind.input_model.model_fields) if kind is not None else ()
    columns: Iterable[tuple[str, str, str | None, str | None, str | None]] = zip(
        row.bodies, row.states, row.s3_paths, row.error_classes, row.error_messages, strict=True
    )
    content = []
    for body, state, s3_path, error_class, error_message in columns:
        item = _in_order(json.loads(body), names)
        item["s3Path"] = s3_path
        if state != "SUCCEEDED":
            item["status"] = state
            why = why_document(state, error_class, error_message)
            item |= {name: said for name, said in why.items() if said is not None}
        content.append(item)
    return content


def _in_order(stored: Any, names: Iterable[str]) -> dict[str, Any]:
    """Give an input's own fields as its kind orders them, which JSONB forgets.

    What has no fields, or one that is named like one of ours, is given whole, as ``input``.
    """
    if not isinstance(stored, dict) or not _OURS.isdisjoint(stored):
        return {"input": stored}
    return {name: stored[name] for name in names if name in stored} | stored


def error_document(error_class: str | None, message: str | None) -> dict[str, str | None] | None:
    """Give what went wrong, if anything did."""
    return None if message is None else {"type": error_class, "message": message}


def why_document(state: str, error_class: str | None, message: str | None) -> dict[str, Any]:
    """Give what went wrong with an input or, of one that was skipped, the reason of its kind."""
    if state == InputStatus.SKIPPED:
        return {"error": None, "reason": message}
    return {"error": error_document(error_class, message), "reason": None}


def settled_text(row: Row[Any]) -> str | None:
    """Give when an input came to its end; the row has the time of its last attempt as well."""
    return time_text(row.settled_at) if row.state in TERMINAL_INPUT_STATUSES else None


def _links(address: str) -> dict[str, str]:
    return {"self": address, "inputs": f"{address}/inputs"}


def time_text(value: dt.datetime | None) -> str | None:
    """Give a time as RFC 3339 in UTC."""
    return None if value is None else value.isoformat().replace("+00:00", "Z")
