"""From the text of a submission to a job that may be stored: all is checked, all at once."""

from __future__ import annotations

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
from schema.kinds import JobOptions
from schema.stored_models import stored_text

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterator, Mapping
    from hashlib import _Hash

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
    """A job that is fit to store, but for its inputs, of which it has so many.

    ``line`` is its line in a body that is read by lines.
    """

    kind: Kind
    fields: JobFields
    options: str
    metadata: str
    many_inputs: int
    line: int | None

    @property
    def times(self) -> Times:
        """Give the times that must lie in the future."""
        return Times(self.fields.scheduledFor, self.fields.expiresAt)

    def asked(self) -> bytes:
        """Give what it asks for beside its inputs, the same for whatever order of names."""
        return json.dumps(self.fields.model_dump(mode="json"), sort_keys=True).encode()


@dataclass(slots=True)
class Document:
    """One reading of a body, from where it stands; its inputs are taken for those of a kind.

    With ``by_lines``, the first line is the job without its inputs, and each other line is one.
    """

    body: IO[bytes]
    kinds: Mapping[str, Kind]
    limits: Limits
    kind_name: str
    by_lines: bool
    # Learns what inputs were sent.
    digest: _Hash | None = None
    bad: BadFields = field(default_factory=BadFields)
    source: Source = field(init=False)
    names: set[str] = field(default_factory=set)
    # The text and the value of each sound member, the inputs aside.
    texts: dict[str, str] = field(default_factory=dict)
    documents: dict[str, Any] = field(default_factory=dict)
    many_inputs: int = 0
    are_unjudged: bool = False
    inputs_read_as: str | None = None
    # Whether no member can come any more, inputs by lines aside.
    has_all_members: bool = False

    @property
    def is_misread(self) -> bool:
        """Say whether the kind, which stood behind the inputs, is not what they were taken for."""
        return self.inputs_read_as is not None and self.kind_name != self.inputs_read_as

    def read(self) -> Iterator[list[str]]:
        """Read all of it; give the texts of sound inputs on the way, several at a time.

        Once an input is wrong, what is given is empty, as often as it was before.
        """
        if not self.by_lines:
            self.source = Source(self.body)
            return self._read_object()
        return self._read_lines()

    def _read_lines(self) -> Iterator[list[str]]:
        head = self.body.readline(_HEAD_BYTES)
        if len(head) == _HEAD_BYTES:
            self.bad.line = lambda: 1
            self.bad.add("", f"the first line is longer than {_HEAD_BYTES} bytes")
            raise self.bad.problem()
        self.source = Source(head, first_line=1)
        for _ in self._read_object():
            pass
        if "inputs" in self.names:
            self.bad.add("/inputs", "stand on lines of their own behind the first")
            raise self.bad.problem()
        self.names.add("inputs")
        source = Source(self.body, passed=len(head.decode()), first_line=2)
        self.bad.line = source.line
        if source.peek():
            yield from self._read_each(source, self.limits.stream_inputs, by_lines=True)

    def _read_object(self) -> Iterator[list[str]]:
        source = self.source
        self.bad.line = source.line
        if not source.peek():
            what = "the first line" if self.by_lines else "the body"
            raise source.not_json(f"{what} is empty")
        if source.peek() != "{":
            source.value("", self.bad, limit=_MEMBER_CHARACTERS, depth=INPUT_DEPTH)
            self.bad.add("", "the body must be a JSON object")
            raise self.bad.problem()
        source.take("{")
        if source.peek() == "}":
            source.take("}")
        else:
            yield from self._read_member()
            while source.take(",", "}") == ",":
                yield from self._read_member()
        if source.peek():
            raise source.not_json("nothing may follow the object")
        self.has_all_members = True

    def _read_member(self) -> Iterator[list[str]]:
        source, bad = self.source, self.bad
        if source.peek() != '"':
            raise source.not_json('expected "')
        before = bad.count
        name, _ = source.value("", bad, limit=_NAME_CHARACTERS, depth=0)
        source.take(":")
        pointer = f"/{escape(name)}"
        is_first = name not in self.names
        if not is_first:
            bad.add(pointer, "is given twice")
        if len(self.names) == _MEMBERS:
            bad.add("", f"has more than {_MEMBERS} members")
            raise bad.problem()
        self.names.add(name)
        if name == "inputs" and source.peek() == "[":
            yield from self._read_inputs()
            return
        depth = _METADATA_DEPTH if name == "metadata" else INPUT_DEPTH
        document, text = source.value(pointer, bad, limit=_MEMBER_CHARACTERS, depth=depth)
        if bad.count == before:
            self.texts[name], self.documents[name] = text, document
        # A second one would have the inputs read again for each of the two in turn.
        if name == "kind" and is_first and isinstance(document, str):
            self.kind_name = document

    def _read_inputs(self) -> Iterator[list[str]]:
        source = self.source
        source.take("[")
        if source.peek() in {"", "]"}:
            source.take("]")
        else:
            yield from self._read_each(source, self.limits.inputs, by_lines=False)

    def _read_each(self, source: Source, most: int, *, by_lines: bool) -> Iterator[list[str]]:
        self.inputs_read_as = self.kind_name
        kind = self.kinds.get(self.kind_name)
        inputs = Inputs(source, kind, self.bad, most, self.limits.input_bytes, by_lines=by_lines)
        inputs.digest = self.digest
        inputs.kind_is_guess = "kind" not in self.names and not by_lines
        yield from inputs.read()
        self.many_inputs, self.are_unjudged = inputs.many, inputs.are_unjudged

    @property
    def is_sound(self) -> bool:
        """Say whether nothing is wrong with what was read so far; what is not, stays so.

        Unless the kind comes last: then all is read again. What may still come is not missing.
        """
        return not self.bad.count and self._judge(BadFields()) is not None

    def submission(self) -> Submission:
        """Put together what was read; raise ``BadSubmission`` if anything was wrong."""
        bad = self.bad
        if self.are_unjudged:
            raise bad.problem()
        bad.line = no_line
        if "inputs" not in self.names:
            bad.add("/inputs", "Field required")
        elif "inputs" in self.documents:
            bad.add("/inputs", "must be an array")
        elif not self.many_inputs:
            bad.add("/inputs", "must hold at least one input")
        # All the rest stands where the job does.
        bad.line = self.source.line
        job = self._judge(bad)
        if bad.count or job is None:
            raise BadSubmission(bad, Times(self._time("scheduledFor"), self._time("expiresAt")))
        return Submission(*job, self.many_inputs, self.source.line())

    def _judge(self, bad: BadFields) -> tuple[Kind, JobFields, str, str] | None:
        """Check all that was read so far but the inputs; nothing where there is anything wrong."""
        before = bad.count
        fields = self._fields(bad)
        kind = self.kinds.get(self.kind_name)
        if kind is None:
            known = ", ".join(sorted(self.kinds))
            bad.add("/kind", f"is not a kind of this server, which has: {known}")
        options = self._options(kind, bad) if kind is not None else None
        metadata = self.texts.get("metadata", "{}")
        if len(metadata.encode("utf-8", "replace")) > _METADATA_BYTES:
            bad.add("/metadata", f"is longer than {_METADATA_BYTES} bytes")
        if bad.count > before or fields is None or kind is None or options is None:
            return None
        return kind, fields, options, metadata

    def _fields(self, bad: BadFields) -> JobFields | None:
        members = (
            f"{json.dumps(name)}:{text}" for name, text in self.texts.items() if name != "inputs"
        )
        self._find_conflicts(bad)
        try:
            return JobFields.model_validate_json("{" + ",".join(members) + "}")
        except ValidationError as error:
            bad.add_validation(error, "", self.documents, what="a job")
            return None

    def _find_conflicts(self, bad: BadFields) -> None:
        """Name members that exclude each other, whatever is wrong with the others."""
        scheduled_for, expires_at = self._time("scheduledFor"), self._time("expiresAt")
        if scheduled_for and expires_at and expires_at <= scheduled_for:
            bad.add("/expiresAt", "must lie after scheduledFor")
        policy = self.documents.get("policy")
        both = ("toleratedFailures", "toleratedFailureShare")
        if isinstance(policy, dict) and all(policy.get(name) is not None for name in both):
            bad.add("/policy/toleratedFailureShare", "excludes toleratedFailures: give one")

    def _time(self, name: str) -> dt.datetime | None:
        """Give the time of a member that is sound, whatever is wrong with the others."""
        given = self.documents.get(name)
        if given is None:
            return None
        try:
            return read_time(given)
        except PydanticCustomError:
            return None

    def _options(self, kind: Kind, bad: BadFields) -> str | None:
        if "options" not in self.names and (
            not self.has_all_members or kind.options_model is JobOptions
        ):
            return "{}"
        document = self.documents.get("options", {})
        if not isinstance(document, dict):
            return None
        try:
            options = kind.options_model.model_validate_json(self.texts.get("options", "{}"))
        except ValidationError as error:
            what = f"the options of kind {kind.name}"
            bad.add_validation(error, "/options", document, what=what)
            return None
        return stored_text(options.__pydantic_serializer__, options)
