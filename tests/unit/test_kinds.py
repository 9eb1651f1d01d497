"""Which kinds there are, and which of them a consumer works on."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from infra.kinds import choose_kinds, load, load_kinds
from schema.chunking import ChunkBounds
from schema.errors import Misconfigured
from schema.kinds import ConcurrencyBounds, JobInput, JobOptions, Kind
from schema.outcome import Backoff


def kind(**more: Any) -> Kind:
    return Kind("made-here", JobInput, "nowhere:NOTHING", **more)


PROCESSOR_ITSELF: dict[str, Any] = {"processor": JobInput}


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: kind(max_attempts=500), "kind 'made-here': max_attempts .* from 1 to 100"),
        (lambda: kind(max_attempts=0), "max_attempts"),
        (lambda: replace(kind(), processor="nowhere"), "processor"),
        (lambda: replace(kind(), **PROCESSOR_ITSELF), "processor"),
        (lambda: kind(max_attempts=2.0), "max_attempts"),
        (lambda: kind(time_limit_seconds=math.nan), "time_limit_seconds"),
        (lambda: kind(time_limit_seconds=math.inf), "time_limit_seconds"),
        (lambda: kind(time_limit_seconds=0), "time_limit_seconds"),
        (lambda: kind(options_model=dict), "options_model"),
        (lambda: kind(identity="title"), "identity"),
        (lambda: kind(isolation="thread"), "isolation"),
        (lambda: kind(isolation="process", memory_limit_bytes=1e12), "memory_limit_bytes"),
        (lambda: ChunkBounds(0, 0), "chunk minimum"),
        (lambda: ChunkBounds(10, 5), "chunk maximum .* from 10"),
        (lambda: ChunkBounds(maximum=10_001), "chunk maximum"),
        (lambda: ChunkBounds(target_slice_ms=math.nan), "target_slice_ms"),
        (lambda: ChunkBounds(safety=0), "safety"),
        (lambda: Backoff(math.nan, -5), "base_seconds"),
        (lambda: Backoff(4, -5), "cap_seconds"),
        (lambda: Backoff(4, math.inf), "cap_seconds"),
        (lambda: ConcurrencyBounds(0), "concurrency minimum"),
        (lambda: ConcurrencyBounds(3, 2), "concurrency maximum"),
    ],
)
def test_what_no_job_could_be_made_or_run_with_is_refused_with_its_name(
    make: Callable[[], object], named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        make()


@pytest.mark.parametrize("identity", [lambda _: ["a"], lambda _: 1 / 0, lambda _: ({},)])
def test_an_identity_that_cannot_be_compared_is_the_fault_of_its_kind(
    identity: Callable[[object], Any],
) -> None:
    with pytest.raises(Misconfigured, match="kind 'made-here': identity must"):
        kind(identity=identity).identity_of(JobInput())


@pytest.mark.parametrize("code", ["0", "3", "'bye'", ""])
def test_a_module_that_exits_does_not_end_its_process_without_a_word(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"kinds_that_exit_{len(code)}"
    (tmp_path / f"{name}.py").write_text(f"import sys\nsys.exit({code})\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(Misconfigured, match="HAULAGE_KINDS: cannot load .*SystemExit"):
        load(f"{name}:KIND", setting="HAULAGE_KINDS")


class Secretive(JobOptions):
    token: SecretStr


class Late(JobInput):
    at: "Place | None" = None


class Undescribed(JobInput):
    call: Callable[[], None]


SECRETIVE = Kind("secretive", JobInput, "nowhere:NOTHING", options_model=Secretive)
UNDESCRIBED = Kind("undescribed", Undescribed, "nowhere:NOTHING")
LATE = Kind("late", Late, "nowhere:NOTHING")


class Place(JobInput):
    name: str


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("SECRETIVE", "kind 'secretive': options_model: Secretive.token is a secret"),
        ("UNDESCRIBED", "kind 'undescribed': input_model: Undescribed has no JSON schema"),
    ],
)
def test_models_that_cannot_be_stored_or_described_are_refused_where_kinds_are_loaded(
    name: str, told: str
) -> None:
    with pytest.raises(Misconfigured, match=f"HAULAGE_KINDS: {told}"):
        load_kinds(f"{__name__}:{name}")


def test_a_model_may_refer_to_one_that_follows_its_kind() -> None:
    assert "late" in load_kinds(f"{__name__}:LATE")


def test_a_consumer_works_on_all_kinds_unless_some_are_chosen() -> None:
    kinds = load_kinds("tests.plugin_example.noop:NOOP")
    assert set(choose_kinds(kinds, "")) == set(kinds)
    assert set(choose_kinds(kinds, " noop ,")) == {"noop"}


def test_choosing_an_unknown_kind_stops_the_start_and_names_the_known_ones() -> None:
    with pytest.raises(Misconfigured, match="invoice is no kind; there are: export"):
        choose_kinds(load_kinds(""), "export,invoice")
