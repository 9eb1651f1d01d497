"""Checking the inputs of a job: in runs where all is well, one by one where it is not."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from api.problems import MOST_COUNTED

if TYPE_CHECKING:
    from api.problems import BadFields
    from api.spool import Spool
    from api.strict_json import Run, Source
    from schema.kinds import Kind

INPUT_DEPTH = 16


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one submission may hold; ``stream_inputs`` where each input has its line."""

    inputs: int
    input_bytes: int
    stream_inputs: int


@dataclass(slots=True)
class Inputs:
    """Reads the inputs of a job into ``spool``, which is of use only if nothing was ``bad``."""

    source: Source
    kind: Kind | None
    bad: BadFields
    spool: Spool
    most: int
    input_bytes: int
    by_lines: bool
    many: int = 0
    # What makes two inputs the same, and the first that has it. Of a body its hash will do: 64
    # bits under this process's own key are the same for two of a million once in 37 million jobs.
    seen: dict[object, int] = field(default_factory=dict)

    def read(self) -> None:
        """Read them from the first to the last; what is wrong goes to ``bad``."""
        while self._read_some():
            if self.bad.count >= MOST_COUNTED:
                raise self.bad.problem()

    def _read_some(self) -> bool:
        """Read the next input, or several; say whether there are more."""
        source = self.source
        run = None
        if self.kind is not None:
            run = source.run(limit=self.input_bytes, depth=INPUT_DEPTH, by_lines=self.by_lines)
        if run is None:
            self._read_one()
        elif self._accepts(run, self.kind):
            source.pass_run(run)
        else:
            source.read_singly(run)
            return True
        if self.by_lines:
            return source.end_line(f"/inputs/{self.many - 1}")
        return source.take(",", "]") == ","

    def _accepts(self, run: Run, kind: Kind | None) -> bool:
        """Take a whole run, or nothing of it if anything in it is wrong."""
        if kind is None or self.many + run.many > self.most:
            return False
        try:
            models = _list_of(kind.input_model).validate_json(run.array)
        except ValidationError:
            return False
        bodies = [_dumped(model) for model in models]
        same = _identities(kind, models, bodies)
        if len(set(same)) < len(same) or not self.seen.keys().isdisjoint(same):
            return False
        self.seen.update(zip(same, range(self.many, self.many + run.many), strict=True))
        self.many += run.many
        if not self.bad.count:
            self.spool.add(bodies)
        return True

    def _read_one(self) -> None:
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
            return
        if bad.count != before:
            # What else is wrong with it is worth knowing, too.
            text = json.dumps(document)
        try:
            model = kind.input_model.model_validate_json(text)
        except ValidationError as error:
            bad.add_validation(error, pointer, document, what=f"an input of kind {kind.name}")
            return
        if bad.count != before:
            # It was mended to be looked at: what it equals now, it does not.
            return
        body = _dumped(model)
        (identity,) = _identities(kind, [model], [body])
        first = self.seen.setdefault(identity, ordinal)
        if first != ordinal:
            bad.add(pointer, f"inputs {first} and {ordinal} are the same")
        if not bad.count:
            self.spool.add([body])


@lru_cache(maxsize=256)
def _list_of(model: type[BaseModel]) -> TypeAdapter[list[BaseModel]]:
    adapter: Any = TypeAdapter(list[model])  # type: ignore[valid-type]
    return adapter  # type: ignore[no-any-return]


def _dumped(model: BaseModel) -> str:
    # What model_dump_json does, without its thirteen arguments.
    return model.__pydantic_serializer__.to_json(model, by_alias=True).decode()


def _identities(kind: Kind, models: list[BaseModel], bodies: list[str]) -> list[object]:
    if kind.identity is None:
        return [hash(body) for body in bodies]
    return [kind.identity_of(model) for model in models]
