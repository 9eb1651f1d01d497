"""The digest of a request depends on what was sent alone, whatever its kind makes of it."""

import json
import os
import subprocess
import sys
import uuid
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field, model_validator

from api.inputs import Limits
from api.reading import Reading
from schema.kinds import JobInput, JobOptions, Kind

CHECKOUT = Path(__file__).resolve().parents[3]
LIMITS = Limits(inputs=1_000, input_bytes=1_024, stream_inputs=1_000)


class More(JobInput):
    a: int
    b: int


class Plain(JobInput):
    text: str
    more: More


class Free(JobInput):
    text: str
    more: dict[str, int]


class Numbered(Plain):
    number: uuid.UUID = Field(default_factory=uuid.uuid4)


class Stamped(Plain):
    stamp: str = ""

    @model_validator(mode="before")
    @classmethod
    def _stamp(cls, document: Any) -> Any:
        return {"stamp": str(uuid.uuid4()), **document}


class Tagged(JobInput):
    text: str
    tags: set[str]


class Drawn(JobOptions):
    seed: uuid.UUID = Field(default_factory=uuid.uuid4)


NAMES = ["plain", "free", "numbered", "stamped", "drawn"]
KINDS = {
    "plain": Kind("plain", Plain, "unused:unused"),
    "free": Kind("free", Free, "unused:unused"),
    "numbered": Kind("numbered", Numbered, "unused:unused"),
    "stamped": Kind("stamped", Stamped, "unused:unused"),
    "tagged": Kind("tagged", Tagged, "unused:unused"),
    "drawn": Kind("drawn", Plain, "unused:unused", options_model=Drawn),
}


def digest(body: str, *, by_lines: bool = False, enough: int = 10**9) -> str:
    reading = Reading(
        BytesIO(body.encode()), KINDS, LIMITS, by_lines=by_lines, enough=enough, digests=True
    )
    reading.gather()
    while reading.block():
        pass
    reading.finish()
    return reading.digest().hex()


def inputs(many: int = 300) -> list[dict[str, Any]]:
    return [{"text": f"n {n} é {'x' * (n % 90)}", "more": {"b": n, "a": 1}} for n in range(many)]


@pytest.mark.parametrize("kind", NAMES)
def test_the_same_request_has_the_same_digest_however_it_is_written(kind: str) -> None:
    job = {"kind": kind, "inputs": inputs()}
    asked = digest(json.dumps(job))
    turned = [dict(reversed(one.items())) for one in inputs()]
    lines = "\n".join([json.dumps({"kind": kind}), *map(json.dumps, turned)])
    assert digest(json.dumps(job), enough=1) == asked
    assert digest(json.dumps({**job, "inputs": turned}, indent=3)) == asked
    assert digest(json.dumps(job, ensure_ascii=False, sort_keys=True)) == asked
    assert digest(lines, by_lines=True) == asked


@pytest.mark.parametrize("kind", NAMES)
def test_another_request_has_another_digest(kind: str) -> None:
    first, second, *others = inputs()
    asked = [
        [first, second, *others],
        [second, first, *others],
        [first, second],
        [{**first, "more": {"b": 0, "a": 2}}, second, *others],
    ]
    bodies = [{"kind": kind, "inputs": given} for given in asked]
    assert len({digest(json.dumps(body)) for body in [*bodies, {**bodies[0], "priority": 1}]}) == 5


def test_another_option_makes_another_request() -> None:
    seeds = [{"seed": str(uuid.UUID(int=number))} for number in (1, 2, 1)]
    bodies = [{"kind": "drawn", "inputs": inputs(2), "options": options} for options in seeds]
    first, second, again = (digest(json.dumps(body)) for body in bodies)
    assert first == again != second


def test_a_set_has_the_same_digest_in_every_process() -> None:
    """Sets of texts are written in another order by each process."""
    tags = [f"tag {number}" for number in range(20)]
    job = {"kind": "tagged", "inputs": [{"text": f"{number}", "tags": tags} for number in range(9)]}
    code = f"from {__name__} import digest; print(digest({json.dumps(job)!r}))"
    for seed in ("1", "2"):
        told = subprocess.run(
            [sys.executable, "-c", code],
            cwd=CHECKOUT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert told.stdout.strip() == digest(json.dumps(job))
