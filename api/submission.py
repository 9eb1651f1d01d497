"""From the bytes of a submission to a job that may be stored: all is checked, all at once."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError
from pydantic_core import PydanticCustomError

from api.models import JobFields, read_time
from api.problems import MOST_COUNTED, BadFields, Problem, escape
from api.strict_json import Source

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping

    from schema.kinds import Kind

_MEMBER_CHARACTERS = 64 * 1024
_NAME_CHARACTERS = 1_024
_MEMBERS = 64
_DEPTH = 16
_METADATA_BYTES = 16 * 1024
_METADATA_DEPTH = 8


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one submission may hold."""

    inputs: int
    input_bytes: int


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
    """A job that is fit to store: ``bodies`` are the inputs as canonical JSON, in order."""

    kind: Kind
    fields: JobFields
    options: str
    metadata: str
    bodies: list[str]

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
        for body in self.bodies:
            digest.update(b"\n" + body.encode())
        return digest.digest()


def read_submission(
    body: bytes | bytearray, kinds: Mapping[str, Kind], limits: Limits
) -> Submission:
    """Read a body; raise the ``Problem`` that names everything wrong with it.

    A whole body with something wrong in it is a ``BadSubmission``.
    """
    reading = _Reading(Source(body), kinds, limits, JobFields.model_fields["kind"].default)
    reading.read()
    if reading.kind_name != reading.inputs_read_as:
        # The kind stood behind the inputs, and is not the one that was taken for granted.
        reading = _Reading(Source(body), kinds, limits, reading.kind_name)
        reading.read()
    return reading.submission()


@dataclass(slots=True)
class _Reading:
    source: Source
    kinds: Mapping[str, Kind]
    limits: Limits
    kind_name: str
    bad: BadFields = field(default_factory=BadFields)
    names: set[str] = field(default_factory=set)
    # The text and the value of each sound member, the inputs aside.
    texts: dict[str, str] = field(default_factory=dict)
    documents: dict[str, Any] = field(default_factory=dict)
    bodies: list[str] = field(default_factory=list)
    many_inputs: int = 0
    inputs_read_as: str | None = None

    def read(self) -> None:
        """Read the whole body, member by member."""
        source = self.source
        if source.peek() != "{":
            source.value("", self.bad, limit=_MEMBER_CHARACTERS, depth=_DEPTH)
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
            self._read_inputs(self.kinds.get(self.kind_name))
            self.inputs_read_as = self.kind_name
            return
        depth = _METADATA_DEPTH if name == "metadata" else _DEPTH
        document, text = source.value(pointer, bad, limit=_MEMBER_CHARACTERS, depth=depth)
        if bad.count == before:
            self.texts[name], self.documents[name] = text, document
        if name == "kind" and isinstance(document, str):
            self.kind_name = document

    def _read_inputs(self, kind: Kind | None) -> None:
        source = self.source
        self.bodies = []
        source.take("[")
        if source.peek() == "]":
            source.take("]")
            return
        inputs = _Inputs(kind, self.limits, self.bad, self.bodies)
        inputs.read(source)
        while source.take(",", "]") == ",":
            if self.bad.count >= MOST_COUNTED:
                raise self.bad.problem()
            inputs.read(source)
        self.many_inputs = inputs.many

    def submission(self) -> Submission:
        """Put together what was read; raise ``BadSubmission`` if anything was wrong."""
        bad = self.bad
        if "inputs" not in self.names:
            bad.add("/inputs", "Field required")
        elif "inputs" in self.documents:
            bad.add("/inputs", "must be an array")
        elif not self.many_inputs:
            bad.add("/inputs", "must hold at least one input")
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
        return Submission(kind, fields, options, metadata, self.bodies)

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
        try:
            return read_time(self.documents.get(name))
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


@dataclass(slots=True)
class _Inputs:
    """Checks input after input and keeps the canonical text of each."""

    kind: Kind | None
    limits: Limits
    bad: BadFields
    bodies: list[str]
    many: int = 0
    seen: dict[object, int] = field(default_factory=dict)

    def read(self, source: Source) -> None:
        """Read the next input."""
        bad, ordinal, before = self.bad, self.many, self.bad.count
        pointer = f"/inputs/{ordinal}"
        if ordinal == self.limits.inputs:
            bad.add("/inputs", f"holds more than {self.limits.inputs} inputs")
            raise bad.problem()
        self.many += 1
        document, text = source.value(pointer, bad, limit=self.limits.input_bytes, depth=_DEPTH)
        if not text.isascii() and len(text.encode("utf-8", "replace")) > self.limits.input_bytes:
            bad.add(pointer, f"is longer than {self.limits.input_bytes} bytes")
        if self.kind is None:
            return
        if bad.count != before:
            # What else is wrong with it is worth knowing, too.
            text = json.dumps(document)
        try:
            model = self.kind.input_model.model_validate_json(text)
        except ValidationError as error:
            what = f"an input of kind {self.kind.name}"
            bad.add_validation(error, pointer, document, what=what)
            return
        body = model.model_dump_json(by_alias=True)
        identity = body if self.kind.identity is None else self.kind.identity(model)
        first = self.seen.setdefault(identity, ordinal)
        if first != ordinal:
            bad.add(pointer, f"inputs {first} and {ordinal} are the same")
        if not bad.count:
            self.bodies.append(body)
