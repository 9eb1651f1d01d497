"""Checking the inputs of a job: in runs where all is well, one by one where it is not."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from api.problems import MOST_COUNTED
from schema.stored_models import holds_plain_values, is_repeatable, stored_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from hashlib import _Hash

    from api.problems import BadFields
    from api.strict_json import Run, Source
    from schema.kinds import Kind

INPUT_DEPTH = 16
_NAMES_SET = attrgetter("__pydantic_fields_set__")
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one submission may hold; ``stream_inputs`` where each input has its line."""

    inputs: int
    input_bytes: int
    stream_inputs: int


@dataclass(slots=True)
class Inputs:
    """Reads the inputs of a job."""

    source: Source
    kind: Kind | None
    bad: BadFields
    most: int
    input_bytes: int
    by_lines: bool
    # Learns what was sent, whatever its white space and order of names.
    digest: _Hash | None = None
    # Whether the kind may still be named, behind the inputs.
    kind_is_guess: bool = False
    many: int = 0
    # What makes two inputs the same, and the first that has it. Of a body its hash will do: 64
    # bits under this process's own key are the same for two of a million once in 37 million jobs.
    seen: dict[object, int] = field(default_factory=dict)
    # Whether so much was wrong with them as inputs of the guessed kind that they are not judged.
    are_unjudged: bool = False
    most_counted: int = MOST_COUNTED

    def read(self) -> Iterator[list[str]]:
        """Read them from the first to the last; give the texts of sound ones, several at a time.

        What is wrong goes to ``bad``, and from then on what is given is empty.
        """
        while True:
            run = self._find_run()
            if run is None:
                bodies = [self._read_one()]
            else:
                accepted = self._accept(run)
                if accepted is None:
                    self.source.read_singly(run)
                    continue
                self.source.pass_run(run)
                bodies = accepted
            yield [] if self.bad.count else bodies
            if not self._goes_on():
                return
            if self.bad.count >= self.most_counted:
                if self.are_unjudged or not self.kind_is_guess:
                    raise self.bad.problem()
                self.are_unjudged, self.kind = True, None
                self.most_counted += MOST_COUNTED

    def _find_run(self) -> Run | None:
        if self.kind is None:
            return None
        return self.source.run(limit=self.input_bytes, by_lines=self.by_lines)

    def _goes_on(self) -> bool:
        if self.by_lines:
            return self.source.end_line(f"/inputs/{self.many - 1}")
        return self.source.take(",", "]") == ","

    def _accept(self, run: Run) -> list[str] | None:
        """Take a whole run, or nothing of it if anything in it is wrong."""
        kind = self.kind
        assert kind is not None, "without one, there is no run"
        read = _read_run(kind, run)
        if read is None:
            return None
        models, documents = read
        if self.many + len(models) > self.most:
            return None
        bodies = _dumped_all(kind, models)
        same = dict(zip(_identities(kind, models, bodies), count(self.many), strict=False))
        if len(same) < len(models) or not self.seen.keys().isdisjoint(same):
            return None
        self.seen.update(same)
        self.many += len(models)
        self._note(kind, documents, bodies)
        return bodies

    def _read_one(self) -> str:
        """Take one input; what is given is of use only if nothing was wrong."""
        bad, ordinal, before, kind = self.bad, self.many, self.bad.count, self.kind
        pointer = f"/inputs/{ordinal}"
        if ordinal == self.most:
            bad.add("/inputs", f"holds more than {self.most} inputs")
            raise bad.problem()
        self.many += 1
        document, text = self.source.value(pointer, bad, limit=self.input_bytes, depth=INPUT_DEPTH)
        if not text.isascii() and len(text.encode("utf-8", "replace")) > self.input_bytes:
            bad.add(pointer, f"is longer than {self.input_bytes} bytes")
        if self.by_lines and "\n" in text:
            bad.add(pointer, "goes on over several lines")
        if kind is None:
            return text
        if bad.count != before:
            # What else is wrong with it is worth knowing, too.
            text = json.dumps(document)
        try:
            model = kind.input_model.model_validate_json(text)
        except ValidationError as error:
            bad.add_validation(error, pointer, document, what=f"an input of kind {kind.name}")
            return text
        if bad.count != before:
            # It was mended to be looked at: what it equals now, it does not.
            return text
        body = _dumped(model)
        (identity,) = _identities(kind, [model], [body])
        first = self.seen.setdefault(identity, ordinal)
        if first != ordinal:
            bad.add(pointer, f"inputs {first} and {ordinal} are the same")
        self._note(kind, [document], [body])
        return body

    def _note(self, kind: Kind, documents: list[Any], bodies: list[str]) -> None:
        if self.digest is None:
            return
        if is_repeatable(kind.input_model):
            # They come of what was sent alone, and are made already.
            self.digest.update("\n".join([*bodies, ""]).encode())
        else:
            # What follows each other is the same, in however many runs it was read.
            self.digest.update(f"{_CANONICAL.encode(documents)[1:-1]},".encode())


@lru_cache(maxsize=256)
def _list_of(model: type[BaseModel]) -> TypeAdapter[list[BaseModel]]:
    # To look up the texts of each input among the last ones costs a quarter of reading it.
    config = ConfigDict(cache_strings="keys")
    adapter: Any = TypeAdapter(list[model], config=config)  # type: ignore[valid-type]
    return adapter  # type: ignore[no-any-return]


def _read_run(kind: Kind, run: Run) -> tuple[list[BaseModel], list[Any]] | None:
    """Give the inputs of a run, and what they were read from; nothing if anything is wrong.

    Of a plain model the latter is left out, unless it has to be looked at.
    """
    is_plain = holds_plain_values(kind.input_model)
    documents = [] if is_plain else run.documents(INPUT_DEPTH)
    if documents is None:
        return None
    try:
        models = _list_of(kind.input_model).validate_json(run.array)
    except ValidationError:
        return None
    if is_plain and (run.lines not in {None, len(models)} or run.colons != _names_set(models)):
        # A name is repeated, or a text holds a colon.
        documents = run.documents(INPUT_DEPTH)
        if documents is None:
            return None
    return models, documents


def _names_set(models: list[BaseModel]) -> int:
    """Give the number of names that were set, each once, however often it was given."""
    return sum(map(len, map(_NAMES_SET, models)))


def _dumped_all(kind: Kind, models: list[BaseModel]) -> list[str]:
    """Give the canonical text of each, which costs least for all at once."""
    if set(map(type, models)) == {kind.input_model}:
        text = stored_text(_list_of(kind.input_model).serializer, models)
        bodies = text[1:-1].replace("},{", "}\n{").split("\n")
        # As many as braces of either sort: each is an object, and holds no other.
        many = {len(models), len(bodies), text.count("{"), text.count("}")}
        if len(many) == 1 and text[1] == "{" and text[-2] == "}":
            return bodies
    return list(map(_dumped, models))


def _dumped(model: BaseModel) -> str:
    return stored_text(model.__pydantic_serializer__, model)


def _identities(kind: Kind, models: list[BaseModel], bodies: list[str]) -> list[object]:
    if kind.identity is None:
        return list(map(hash, bodies))
    return [kind.identity_of(model) for model in models]
