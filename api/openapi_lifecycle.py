"""The part of the OpenAPI document on control, redrive, dead letters and parked work."""

from __future__ import annotations

from api import lifecycle_models as models
from api.control import MOVES
from api.openapi_shared import SCHEMA, Json, header_reference, operation

LIFECYCLE_REQUESTS = (models.ReprocessRequest, models.LetterRequest, models.ParkedRequest)
LIFECYCLE_ANSWERS = (
    models.Moved,
    models.DryRun,
    models.RedriveAccepted,
    models.Redrive,
    models.DeadLetterPage,
    models.CausePage,
    models.InputHistory,
    models.ParkedPage,
    models.MessageResolved,
    models.EntryReleased,
    models.EntriesReleased,
    models.EntriesCounted,
)
_BODY = "400 408 413 415"
_FILTERS = "letterKind letterJob fingerprint errorClass diedFrom diedTo"
_SUMMARIES = {
    "pause": "Pause a job: what is in hand goes on, nothing else starts",
    "resume": "Resume a paused job",
    "cancel": "Cancel a job: nothing starts any more",
}


def lifecycle_paths() -> Json:
    """Describe these operations."""
    show_input = operation(
        "showInput",
        "Show an input, its history and what happens next",
        ("200", "InputHistory", "The input"),
        "jobId ordinal",
        "404",
    )
    letters = operation(
        "listDeadLetters",
        "List dead letters, newest first",
        ("200", "DeadLetterPage", "A page"),
        f"{_FILTERS} owner pageSize after",
        "400 403",
    )
    groups = operation(
        "listCauses",
        "Group dead letters by cause, the commonest first",
        ("200", "CausePage", "The causes"),
        f"{_FILTERS} owner pageSize",
        "403",
    )
    show_redrive = operation(
        "showRedrive",
        "Show how far a redrive has come",
        ("200", "Redrive", "The redrive"),
        "redriveId",
        "404",
    )
    return {
        "/jobs/{jobId}/inputs/{ordinal}": {"get": show_input},
        **{f"/jobs/{{jobId}}/{name}": {"post": _move(name)} for name in MOVES},
        "/jobs/{jobId}/reprocess": {
            "post": _redrive("reprocessJob", "Try inputs of a job again", "jobId", "404 409")
            | _body("ReprocessRequest", required=False)
        },
        "/redrives/{redriveId}": {"get": show_redrive},
        "/dlq": {"get": letters},
        "/dlq/groups": {"get": groups},
        "/dlq/reprocess": {
            "post": _redrive("reprocessLetters", "Try dead letters again", "", "403 404")
            | _body("LetterRequest", required=True)
        },
        "/dlq/{jobId}/{ordinal}/reprocess": {
            "post": _redrive(
                "reprocessLetter",
                "Try one dead letter again",
                "jobId ordinal",
                "404 409",
                dry=False,
            )
        },
        **_parked_paths(),
    }


def _move(name: str) -> Json:
    answer = ("200", "Moved", "Moved, or already there")
    return operation(f"{name}Job", _SUMMARIES[name], answer, "jobId", f"{_BODY} 404 409")


def _parked_paths() -> Json:
    listing = operation(
        "listParked",
        "List what could not be delivered (admin keys)",
        ("200", "ParkedPage", "A page"),
        "pageSize after",
        "400 403",
    )
    acts = {
        "/parked/messages/{id}/reprocess": (
            "reprocessMessage",
            "Make the entry of a parked message due again (admin keys)",
            ("202", "MessageResolved", "Resolved"),
        ),
        "/parked/messages/{id}/dismiss": (
            "dismissMessage",
            "Close a parked message (admin keys)",
            ("200", "MessageResolved", "Closed"),
        ),
        "/parked/entries/{id}/reprocess": (
            "reprocessEntry",
            "Make a parked entry due again (admin keys)",
            ("202", "EntryReleased", "Due, or held while its job is not active"),
        ),
    }
    refusals = f"{_BODY} 403 404 409"
    several = operation(
        "reprocessEntries",
        "Make parked entries due again, 10,000 in a request (admin keys)",
        ("202", "EntriesReleased", "Due, or held while their job is not active"),
        "",
        f"{_BODY} 403 404",
    )
    several["responses"]["200"] = _dry_run("EntriesCounted")
    return {
        "/parked": {"get": listing},
        "/parked/entries/reprocess": {"post": several | _body("ParkedRequest", required=True)},
        **{path: {"post": operation(*about, "id", refusals)} for path, about in acts.items()},
    }


def _redrive(name: str, summary: str, parameters: str, refusals: str, *, dry: bool = True) -> Json:
    answer = ("202", "RedriveAccepted", "Stored: it will be worked off")
    described = operation(name, summary, answer, parameters, f"{_BODY} {refusals}")
    good = described["responses"]["202"]
    good["headers"]["Location"] = header_reference("Location")
    if dry:
        described["responses"]["200"] = _dry_run("DryRun")
    return described


def _dry_run(model: str) -> Json:
    return {
        "description": "With dryRun: nothing was changed",
        "headers": {"X-Correlation-Id": header_reference("CorrelationId")},
        "content": {"application/json": {"schema": {"$ref": SCHEMA.format(model=model)}}},
    }


def _body(model: str, *, required: bool) -> Json:
    content = {"application/json": {"schema": {"$ref": SCHEMA.format(model=model)}}}
    return {"requestBody": {"required": required, "content": content}}
