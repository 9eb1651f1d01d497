"""From the bytes of a submission to a job that may be stored: all is checked, all at once."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError
from pydantic_core import PydanticCustomError

from api.inputs import INPUT_DEPTH, Inputs, Limits
from api.models import JobFields, read_time
from api.problems import BadFields, Problem, escape, no_line
from api.strict_json import Source

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping

    from api.spool import Spool
    from schema.kinds import Kind

_MEMBER_CHARACTERS = 64 * 1024
_NAME_CHARACTERS = 1_024
_MEMBERS = 64
_HEAD_BYTES = 4 * 1024 * 1024
_METADATA_BYTES = 16 * 1024
_METADATA_DEPTH = 8


class Times(NamedTuple):
    """The times of a submission: whether they are past, the database's clock alone decides."""

    scheduled_for: dt.datetime | None
    expires_at: dt.datetime | None


class BadSubmission(Problem):
    """The problem that names all that is wrong but times that are past; these may be added."""

    def __init__(self, bad: BadFields, times: Times) -> None:
        super().__init__(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            "invalid-request",
            bad.summary(),
            errors=bad.listed,
            error_count=bad.count,
        )
        self.bad = bad
        self.times = times


@dataclass(frozen=True, slots=True)
class Submission:
    """A job that is fit to store; ``line`` is its line in a body that is read by lines."""

    kind: Kind
    fields: JobFields
    options: str
    metadata: str
    inputs: Spool
    line: int | None

    @property
    def times(self) -> Times:
        """Give the times that must lie in the future."""
        return Times(self.fields.scheduledFor, self.fields.expiresAt)

    def digest(self) -> bytes:
        """Name the request by what it asks for, whatever its white space and order of names."""
        digest = hashlib.sha256()
        asked = self.fields.model_dump(mode="json", exclude={"options", "metadata"})
        asked["options"] = json.loads(self.options)
        asked["metadata"] = json.loads(self.metadata)
        digest.update(json.dumps(asked, sort_keys=True).encode())
        for block in self.inputs.blocks():
            digest.update(b"\n" + block[:-1])
        return digest.digest()


def read_submission(
    body: IO[bytes], kinds: Mapping[str, Kind], limits: Limits, inputs: Spool, *, by_lines: bool
) -> Submission:
    """Read a body into a job, its inputs into ``inputs``; raise what names everything wrong.

    With ``by_lines``, the first line is the job without its inputs, and each other line is one.
    A whole body with something wrong in it is a ``BadSubmission``.
    """
    if by_lines:
        return _read_lines(body, kinds, limits, inputs)
    taken_for = JobFields.model_fields["kind"].default
    reading = _Reading(Source(body), kinds, limits, inputs, taken_for)
    reading.read()
    if reading.kind_name != reading.inputs_read_as:
        # The kind stood behind the inputs, and is not the one that was taken for granted.
        inputs.clear()
        body.seek(0)
        reading = _Reading(Source(body), kinds, limits, inputs, reading.kind_name)
        reading.read()
    return reading.submission()


def _read_lines(
    body: IO[bytes], kinds: Mapping[str, Kind], limits: Limits, inputs: Spool
) -> Submission:
    head = body.readline(_HEAD_BYTES)
    if len(head) == _HEAD_BYTES:
        bad = BadFields(line=lambda: 1)
        bad.add("", f"the first line is longer than {_HEAD_BYTES} bytes")
        raise bad.problem()
    default = JobFields.model_fields["kind"].default
    reading = _Reading(Source(head, first_line=1), kinds, limits, inputs, default)
    reading.read()
    reading.read_lines(Source(body, passed=len(head.decode()), first_line=2))
    return reading.submission()


@dataclass(slots=True)
class _Reading:
    source: Source
    kinds: Mapping[str, Kind]
    limits: Limits
    inputs: Spool
    kind_name: str
    bad: BadFields = field(default_factory=BadFields)
    names: set[str] = field(default_factory=set)
    # The text and the value of each sound member, the inputs aside.
    texts: dict[str, str] = field(default_factory=dict)
    documents: dict[str, Any] = field(default_factory=dict)
    many_inputs: int = 0
    inputs_read_as: str | None = None

    def read(self) -> None:
        """Read the whole body, member by member."""
        source = self.source
        self.bad.line = source.line
        if source.peek() != "{":
            source.value("", self.bad, limit=_MEMBER_CHARACTERS, depth=INPUT_DEPTH)
            self.bad.add("", "the body must be a JSON object")
            raise self.bad.problem()
        source.take("{")
        if source.peek() == "}":
            source.take("}")
        else:
            self._read_member()
            while source.take(",", "}") == ",":
                self._read_member()
        if source.peek():
            raise source.not_json("nothing may follow the object")
        if self.inputs_read_as is None:
            self.inputs_read_as = self.kind_name

    def _read_member(self) -> None:
        source, bad = self.source, self.bad
        if source.peek() != '"':
            raise source.not_json('expected "')
        before = bad.count
        name, _ = source.value("", bad, limit=_NAME_CHARACTERS, depth=0)
        source.take(":")
        pointer = f"/{escape(name)}"
        if name in self.names:
            bad.add(pointer, "is given twice")
        if len(self.names) == _MEMBERS:
            bad.add("", f"has more than {_MEMBERS} members")
            raise bad.problem()
        self.names.add(name)
        if name == "inputs" and source.peek() == "[":
            self._read_inputs()
            return
        depth = _METADATA_DEPTH if name == "metadata" else INPUT_DEPTH
        document, text = source.value(pointer, bad, limit=_MEMBER_CHARACTERS, depth=depth)
        if bad.count == before:
            self.texts[name], self.documents[name] = text, document
        if name == "kind" and isinstance(document, str):
            self.kind_name = document

    def read_lines(self, source: Source) -> None:
        """Read the inputs that follow the job, one a line."""
        if "inputs" in self.names:
            self.bad.add("/inputs", "stand on lines of their own behind the first")
            raise self.bad.problem()
        self.names.add("inputs")
        self.bad.line = source.line
        self._read_each(source, self.limits.stream_inputs, by_lines=True)

    def _read_inputs(self) -> None:
        self.source.take("[")
        self.inputs.clear()
        self._read_each(self.source, self.limits.inputs, by_lines=False)
        self.inputs_read_as = self.kind_name

    def _read_each(self, source: Source, most: int, *, by_lines: bool) -> None:
        if source.peek() in {"", "]"} and not by_lines:
            source.take("]")
            return
        if not source.peek():
            return
        inputs = Inputs(
            source,
            self.kinds.get(self.kind_name),
            self.bad,
            self.inputs,
            most,
            self.limits.input_bytes,
            by_lines=by_lines,
        )
        inputs.read()
        self.many_inputs = inputs.many

    def submission(self) -> Submission:
        """Put together what was read; raise ``BadSubmission`` if anything was wrong."""
        bad = self.bad
        bad.line = no_line
        if "inputs" not in self.names:
            bad.add("/inputs", "Field required")
        elif "inputs" in self.documents:
            bad.add("/inputs", "must be an array")
        elif not self.many_inputs:
            bad.add("/inputs", "must hold at least one input")
        # All the rest stands where the job does.
        bad.line = self.source.line
        fields = self._fields()
        kind = self.kinds.get(self.kind_name)
        if kind is None:
            known = ", ".join(sorted(self.kinds))
            bad.add("/kind", f"is not a kind of this server, which has: {known}")
        options = self._options(kind) if kind is not None else None
        metadata = self.texts.get("metadata", "{}")
        if len(metadata.encode("utf-8", "replace")) > _METADATA_BYTES:
            bad.add("/metadata", f"is longer than {_METADATA_BYTES} bytes")
        if bad.count or fields is None or kind is None or options is None:
            raise BadSubmission(bad, Times(self._time("scheduledFor"), self._time("expiresAt")))
        return Submission(kind, fields, options, metadata, self.inputs, self.source.line())

    def _fields(self) -> JobFields | None:
        members = (
            f"{json.dumps(name)}:{text}" for name, text in self.texts.items() if name != "inputs"
        )
        self._find_conflicts()
        try:
            return JobFields.model_validate_json("{" + ",".join(members) + "}")
        except ValidationError as error:
            self.bad.add_validation(error, "", self.documents, what="a job")
            return None

    def _find_conflicts(self) -> None:
        """Name members that exclude each other, whatever is wrong with the others."""
        scheduled_for, expires_at = self._time("scheduledFor"), self._time("expiresAt")
        if scheduled_for and expires_at and expires_at <= scheduled_for:
            self.bad.add("/expiresAt", "must lie after scheduledFor")
        policy = self.documents.get("policy")
        both = ("toleratedFailures", "toleratedFailureShare")
        if isinstance(policy, dict) and all(policy.get(name) is not None for name in both):
            self.bad.add("/policy/toleratedFailureShare", "excludes toleratedFailures: give one")

    def _time(self, name: str) -> dt.datetime | None:
        """Give the time of a member that is sound, whatever is wrong with the others."""
        given = self.documents.get(name)
        if given is None:
            return None
        try:
            return read_time(given)
        except PydanticCustomError:
            return None

    def _options(self, kind: Kind) -> str | None:
        document = self.documents.get("options", {})
        if not isinstance(document, dict):
            return None
        try:
            options = kind.options_model.model_validate_json(self.texts.get("options", "{}"))
        except ValidationError as error:
            what = f"the options of kind {kind.name}"
            self.bad.add_validation(error, "/options", document, what=what)
            return None
        return options.model_dump_json(by_alias=True)
