"""What a processor says must be storable before it meets the outcomes of others in one commit."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Mapping
from typing import Any, assert_never

from schema.outcome import (
    Artifact,
    Failed,
    Lapsed,
    Missing,
    Outcome,
    Refused,
    Skipped,
    Succeeded,
    clean,
)

RESULT_LIMIT_BYTES = 256 * 1024
_NAME_LIMIT = 2_000
_CLASS_LIMIT = 200
_LARGEST_SIZE = 2**63 - 1
# The escape of a NUL in JSON: a backslash that is itself escaped begins none.
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
_OUTCOMES = (Succeeded, Skipped, Missing, Refused, Failed)


class BadOutcome(TypeError):
    """A processor said something that cannot be recorded; the message says what."""


def storable(said: Any) -> Outcome:  # noqa: ANN401 - a plug-in may return anything
    """Give the outcome in a form that the database takes; raise ``BadOutcome`` when it has none."""
    if not isinstance(said, _OUTCOMES):
        raise BadOutcome(f"the processor returned {type(said).__name__}, which is no outcome")
    match said:
        case Succeeded():
            _check_success(said)
            return said
        case Skipped(reason) | Missing(reason):
            _check_text("reason", reason)
            return said
        case Refused(error_class, message):
            _check_text("message", message)
            return dataclasses.replace(said, error_class=_class_name(error_class))
        case Failed(error_class, message, retry_after_seconds):
            _check_text("message", message)
            _check_delay(retry_after_seconds)
            return dataclasses.replace(said, error_class=_class_name(error_class))
        case Lapsed():
            raise BadOutcome("that a worker vanished is for the reaper to say")
        case _:
            assert_never(said)


def _check_success(said: Succeeded) -> None:
    # The empty dict is what most successes hold: nothing to look into.
    if said.result or type(said.result) is not dict:
        _check_result(said.result)
    if said.artifact is not None:
        _check_artifact(said.artifact)
    if said.reused is not None and not isinstance(said.reused, bool):
        raise BadOutcome("reused is neither true, false nor null")


def _check_result(result: object) -> None:
    if not isinstance(result, Mapping):
        raise BadOutcome(f"result is {type(result).__name__}, not a mapping")
    try:
        text = json.dumps(result, allow_nan=False, ensure_ascii=False)
        size_bytes = len(text.encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise BadOutcome(f"result is not JSON that can be stored: {clean(str(error))}") from error
    if size_bytes > RESULT_LIMIT_BYTES:
        raise BadOutcome(f"result has {size_bytes} bytes, limit {RESULT_LIMIT_BYTES}")
    if _NUL.search(text):
        raise BadOutcome("result holds a NUL character")


def _check_artifact(artifact: object) -> None:
    if not isinstance(artifact, Artifact):
        raise BadOutcome(f"artifact is {type(artifact).__name__}, not an Artifact")
    for name in ("natural_key", "uri", "etag"):
        value = getattr(artifact, name)
        if not isinstance(value, str) or len(value) > _NAME_LIMIT or clean(value) != value:
            raise BadOutcome(f"artifact.{name} is not a printable text of {_NAME_LIMIT} at most")
    size = artifact.size_bytes
    if type(size) is not int or not 0 <= size <= _LARGEST_SIZE:
        raise BadOutcome("artifact.size_bytes is not a size")


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise BadOutcome(f"{name} is {type(value).__name__}, not a text")


def _check_delay(value: object) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise BadOutcome("retry_after_seconds is not a number of seconds")


def _class_name(value: object) -> str:
    _check_text("error_class", value)
    return clean(str(value))[:_CLASS_LIMIT].rstrip()
