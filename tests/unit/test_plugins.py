"""Kinds from outside: loaded by reference, checked at start, run through the same runners."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import model_validator
from structlog.testing import capture_logs

from consumer.executor import Runner
from consumer.processors.loading import load_runners
from consumer.processors.protocol import Resources, Work
from infra.database import Database
from infra.kinds import load_kinds
from schema.errors import Fault, Misconfigured, Unavailable
from schema.export import EXPORT
from schema.kinds import JobInput, Kind
from schema.outcome import Failed, Missing, Outcome, Refused, Skipped, Succeeded
from tests.claims import claim_of
from tests.platform import settings_for

CHECKOUT = Path(__file__).resolve().parents[2]
EXAMPLES = (
    "tests.plugin_example.word_count:WORD_COUNT, tests.plugin_example.square:SQUARE,"
    "tests.plugin_example.noop:NOOP,tests.plugin_example.noop:NOOP_MANY"
)


@pytest.fixture
def resources() -> Resources:
    settings = settings_for("postgresql://127.0.0.1:1/nowhere")
    return Resources(settings, Database.from_settings(settings, name="test"), storage=None)


@asynccontextmanager
async def runners_of(
    resources: Resources, *kinds: Kind, stop: asyncio.Event | None = None
) -> AsyncIterator[Mapping[str, Runner]]:
    named = {kind.name: kind for kind in kinds}
    async with load_runners(named, resources, stop or asyncio.Event()) as runners:
        yield runners


@asynccontextmanager
async def examples(resources: Resources) -> AsyncIterator[Mapping[str, Runner]]:
    kinds = [kind for kind in load_kinds(EXAMPLES).values() if kind is not EXPORT]
    async with runners_of(resources, *kinds) as runners:
        yield runners


async def run(runner: Runner, kind: str, *bodies: Any, **claim: Any) -> Sequence[Outcome]:
    made = claim_of(kind, *bodies, **claim)
    return await runner.run(made, made.inputs)


def here(name: str) -> Kind:
    return Kind("made-here", JobInput, f"{__name__}:{name}")


@pytest.mark.parametrize(
    ("body", "options", "outcome"),
    [
        ({"title": "haiku"}, "{}", Succeeded({"words": 10})),
        ({"title": "haiku"}, '{"longer_than":3}', Succeeded({"words": 6})),
        ({"title": "blank"}, "{}", Skipped("the text is empty")),
        ({"title": "epic"}, "{}", Missing("no text has the title 'epic'")),
    ],
)
async def test_the_example_works_one_input_at_a_time(
    resources: Resources, body: object, options: str, outcome: Outcome
) -> None:
    async with examples(resources) as runners:
        assert await run(runners["word-count"], "word-count", body, options=options) == [outcome]


async def test_the_example_works_with_many_inputs_at_once(resources: Resources) -> None:
    bodies = [{"number": number} for number in range(3)]
    async with examples(resources) as runners:
        assert runners["square"].together == 500
        assert await run(runners["square"], "square", *bodies) == [
            Succeeded({"square": number**2}) for number in range(3)
        ]


async def test_an_input_that_no_longer_fits_is_refused_alone(resources: Resources) -> None:
    async with examples(resources) as runners:
        outcomes = await run(runners["square"], "square", {"number": 2}, {"n": 1}, {"number": 3})
    assert outcomes[0] == Succeeded({"square": 4})
    assert isinstance(outcomes[1], Refused)
    assert outcomes[2] == Succeeded({"square": 9})


@pytest.mark.parametrize("kind", ["noop", "noop-many"])
async def test_the_kinds_that_do_nothing_do_it_for_every_input(
    resources: Resources, kind: str
) -> None:
    async with examples(resources) as runners:
        assert await run(runners[kind], kind, {"any": 1}, {"thing": [2]}) == [Succeeded()] * 2


def test_the_documentation_shows_the_examples_as_they_are() -> None:
    text = (CHECKOUT / "docs" / "processors.md").read_text()
    for name in ("word_count", "square"):
        source = (CHECKOUT / "tests" / "plugin_example" / f"{name}.py").read_text()
        assert f"```python\n{source}```" in text


class Neither:
    def __init__(self, resources: Resources) -> None: ...


class Both(Neither):
    async def process(self, work: Work) -> Outcome:
        return Succeeded()

    async def process_many(self, works: Sequence[Work]) -> Sequence[Outcome]:
        return [Succeeded() for _ in works]


class Blocking(Neither):
    def process(self, work: Work) -> Outcome:
        return Succeeded()


class Broken(Neither):
    def __init__(self, resources: Resources) -> None:
        super().__init__(resources)
        raise KeyError("x")


NOT_CALLABLE = 1


@pytest.mark.parametrize(
    ("reference", "reason"),
    [
        ("Neither", r"made a Neither without process\(work\)"),
        ("Both", "has both process and process_many"),
        ("Blocking", "process must be an `async def`"),
        ("Broken", "failed: KeyError: 'x'"),
        ("NOT_CALLABLE", "cannot be called"),
        ("Nowhere", "cannot load"),
    ],
)
async def test_what_is_no_processor_keeps_the_consumer_from_starting(
    resources: Resources, reference: str, reason: str
) -> None:
    with pytest.raises(Misconfigured, match=rf"kind 'made-here'.*{reason}"):
        async with runners_of(resources, here(reference)):
            pass


async def test_exports_without_a_bucket_keep_the_consumer_from_starting(
    resources: Resources,
) -> None:
    with pytest.raises(Misconfigured, match=r"kind 'export'.*set HAULAGE_BUCKET"):
        async with runners_of(resources, EXPORT):
            pass


class Waiting:
    """Is away once, then starts; its `process` does what the body says."""

    log: list[str]

    def __init__(self, resources: Resources) -> None:
        Waiting.log = []

    async def start(self) -> None:
        Waiting.log.append("start")
        if len(Waiting.log) == 1:
            raise Unavailable("not yet")

    async def close(self) -> None:
        Waiting.log.append("close")
        raise Fault("a processor that cannot close")

    async def process(self, work: Work) -> Outcome:
        if work.attempt == 1:
            raise LookupError("secret at https://u:p@h/")
        return None  # type: ignore[return-value]


async def test_a_start_that_is_away_is_waited_for_and_close_always_runs(
    resources: Resources,
) -> None:
    with capture_logs() as logs:
        async with runners_of(resources, here("Waiting")):
            assert Waiting.log == ["start", "start"]
    assert Waiting.log == ["start", "start", "close"]
    assert [entry["event"] for entry in logs] == ["neighbour.away", "processor.not_closed"]


async def test_an_unexpected_error_fails_the_attempt_and_is_logged(resources: Resources) -> None:
    with capture_logs() as logs:
        async with runners_of(resources, here("Waiting")) as runners:
            outcomes = await run(runners["made-here"], "made-here", {})
    assert outcomes == [Failed("LookupError", "secret at https://***@h/")]
    failed = next(entry for entry in logs if entry["event"] == "processor.failed")
    assert isinstance(failed["exc_info"], LookupError)


class Returning(Neither):
    async def process_many(self, works: Sequence[Work]) -> Sequence[Outcome]:
        return [Succeeded()]


class Speechless(Neither):
    async def process(self, work: Work) -> Outcome:
        return "done"  # type: ignore[return-value]


class Hanging(Neither):
    started = asyncio.Event()

    async def process(self, work: Work) -> Outcome:
        Hanging.started.set()
        await asyncio.Event().wait()
        return Succeeded()


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("Returning", "process_many gave 1 outcomes for 2 inputs"),
        ("Speechless", "the processor returned str, which is no outcome"),
    ],
)
async def test_a_processor_that_returns_something_else_failed(
    resources: Resources, reference: str, message: str
) -> None:
    async with runners_of(resources, here(reference)) as runners:
        outcomes = await run(runners["made-here"], "made-here", {}, {})
    assert outcomes == [Failed("BadOutcome", message)] * 2


class Former(JobInput):
    """Reads inputs of an older form, and breaks on one."""

    text: str = ""

    @model_validator(mode="before")
    @classmethod
    def _read(cls, document: dict[str, Any]) -> dict[str, Any]:
        return {"text": document["old"]} if document else {}


class Echoing(Neither):
    async def process_many(self, works: Sequence[Work]) -> Sequence[Outcome]:
        return [Succeeded() for _ in works]


async def test_an_input_whose_model_breaks_fails_alone(resources: Resources) -> None:
    kind = replace(here("Echoing"), input_model=Former)
    async with runners_of(resources, kind) as runners:
        outcomes = await run(runners["made-here"], "made-here", {}, {"new": 1}, {"old": "x"})
    assert outcomes[0] == outcomes[2] == Succeeded()
    assert isinstance(outcomes[1], Failed)
    assert outcomes[1].error_class == "KeyError"


async def test_cancelling_passes_through_the_processor(resources: Resources) -> None:
    async with runners_of(resources, here("Hanging")) as runners:
        running = asyncio.create_task(_run_one(runners["made-here"]))
        await Hanging.started.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


async def _run_one(runner: Runner) -> Sequence[Outcome]:
    return await run(runner, "made-here", {})


class Endless:
    """It begins, or ends, something that never comes to its end."""

    def __init__(self, resources: Resources) -> None:
        pass

    async def process(self, work: Work) -> Outcome:
        return Succeeded()


class EndlessStart(Endless):
    async def start(self) -> None:
        ENDLESS_START.set()
        await asyncio.Event().wait()


class EndlessEnd(Endless):
    async def close(self) -> None:
        await asyncio.Event().wait()


ENDLESS_START = asyncio.Event()


async def test_a_start_that_never_ends_does_not_hold_up_the_end_of_the_process(
    resources: Resources,
) -> None:
    stop = asyncio.Event()

    async def load() -> None:
        async with runners_of(resources, here("EndlessStart"), stop=stop):
            assert stop.is_set()

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(load())
        await ENDLESS_START.wait()
        stop.set()


async def test_a_close_that_never_ends_is_told_and_left_behind(resources: Resources) -> None:
    with capture_logs() as lines:
        async with asyncio.timeout(30), runners_of(resources, here("EndlessEnd")):
            pass
    assert [line["event"] for line in lines] == ["processor.not_closed"]
