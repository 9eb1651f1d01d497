"""The steps, as Hypothesis draws, orders and shrinks them."""

import datetime as dt
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from infra.database import Database
from infra.settings import Settings
from tests.simulation.gate import Fate
from tests.simulation.loop import SimulatedLoop
from tests.simulation.quiet import run_to_quiet
from tests.simulation.work import KINDS, Piece, Saying, say
from tests.simulation.world import LEASE_SECONDS, OWNERS, World

_MOST_CONSUMERS = 3
_MOST_JOBS = 8
_MOST_CALLS = 30
_DUTIES = ("reaper", "resender", "finalizer", "expirer", "sweeper", "redriver", "drain")
_CLOCK = (1, 6, LEASE_SECONDS / 3 + 1, LEASE_SECONDS + 1, 130, 400)


@dataclass
class Ground:
    """What the examples of one run share, and what they count together."""

    loop: SimulatedLoop
    settings: Settings
    database: Database
    examples: int = 0
    steps: Counter[str] = field(default_factory=Counter)
    met: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Leash:
    """How many calls of a process are let go, and what becomes of the last of them."""

    calls: int = _MOST_CALLS
    fate: Fate = Fate.WELL


_FAULTS = [fate for fate in Fate if fate is not Fate.WELL]
_LEASHES = st.one_of(
    st.just(Leash()),
    st.builds(Leash, st.integers(1, 3)),
    st.builds(Leash, st.integers(1, 3), st.sampled_from(_FAULTS)),
)
_WHICH = st.integers(0, 7)
_SAYINGS = st.lists(st.sampled_from(Saying), max_size=3)
_DISTURBANCES = ("repeat", "lose", "delay", "show", "mix", "purge")


@dataclass(frozen=True)
class Asking:
    """What a client asks for, of a job or of all its letters."""

    path: str
    document: dict[str, Any]


_ASKINGS = st.one_of(
    st.sampled_from(["pause", "resume", "cancel", "submit again", "dlq/reprocess"]).map(
        lambda path: Asking(path, {})
    ),
    st.sets(st.sampled_from(["DLQ", "NOT_FOUND", "CANCELLED", "EXPIRED"]), min_size=1).map(
        lambda statuses: Asking("reprocess", {"statuses": sorted(statuses)})
    ),
)
_SUBMISSIONS = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(sorted(KINDS)),
        "inputs": st.integers(1, 8),
        "policy": st.fixed_dictionaries(
            {"maxAttempts": st.integers(1, 3)},
            optional={"failFast": st.just(True), "toleratedFailures": st.integers(0, 1)},
        ),
        "priority": st.integers(4, 6),
    },
    optional={"scheduledFor": st.sampled_from([5, 45]), "expiresAt": st.sampled_from([50, 150])},
)


class Simulation(RuleBasedStateMachine):
    """Interleaves clients, consumers, dispatchers, faults and the clock over one world."""

    def __init__(self, ground: Ground) -> None:
        super().__init__()
        ground.examples += 1
        self.ground = ground
        self.world = World(ground.loop, ground.settings, ground.database, ground.met)
        ground.loop.perform(self.world.open())

    def perform(self, name: str, step: Any) -> None:
        self.ground.steps[name] += 1
        self.ground.loop.perform(self._checked(step))

    async def _checked(self, step: Any) -> None:
        await step
        await self.ground.loop.idle()
        await self.world.check()

    def teardown(self) -> None:
        try:
            self.ground.loop.perform(run_to_quiet(self.world))
        finally:
            self.ground.loop.perform(self.world.close())

    # Clients.

    @initialize(asked=_SUBMISSIONS)
    def submit_first(self, asked: dict[str, Any]) -> None:
        self._submit(asked, OWNERS[0], Leash())

    @precondition(lambda self: len(self.world.asked) < _MOST_JOBS)
    @rule(asked=_SUBMISSIONS, owner=st.sampled_from(OWNERS), leash=_LEASHES)
    def submit(self, asked: dict[str, Any], owner: str, leash: Leash) -> None:
        self._submit(asked, owner, leash)

    @rule(which=_WHICH, asking=_ASKINGS, leash=_LEASHES)
    def request(self, which: int, asking: Asking, leash: Leash) -> None:
        world, jobs = self.world, sorted(self.world.before.jobs.values(), key=_by_number)
        if asking.path == "submit again":
            key = sorted(world.asked)[which % len(world.asked)]
            self.perform(asking.path, world.submit(key, leash.calls, leash.fate))
        elif asking.path == "dlq/reprocess":
            owner = OWNERS[which % len(OWNERS)]
            self._ask(asking.path, asking, owner, leash)
        elif jobs:
            job = jobs[which % len(jobs)]
            self._ask(f"jobs/{job['key']}/{asking.path}", asking, world.owner_of(job), leash)

    # Processes.

    @precondition(lambda self: self.world.consumers)
    @rule(which=_WHICH, sayings=_SAYINGS, leash=_LEASHES)
    def consume(self, which: int, sayings: list[Saying], leash: Leash) -> None:
        """Let a consumer go on, once some work of it has ended."""
        consumer = self.world.consumers[which % len(self.world.consumers)]
        pieces = consumer.bench.pieces
        if pieces and sayings:
            say(pieces[which % len(pieces)], sayings)
        self.perform("consume", self.world.run(consumer, leash.calls, leash.fate))

    @precondition(lambda self: any(one.bench.pieces for one in self.world.consumers))
    @rule(which=_WHICH, sayings=_SAYINGS.filter(bool))
    def finish_work(self, which: int, sayings: list[Saying]) -> None:
        pieces = [piece for one in self.world.consumers for piece in one.bench.pieces]
        self.perform("finish work", _say(pieces[which % len(pieces)], sayings))

    @rule(which=_WHICH, leash=_LEASHES)
    def relay(self, which: int, leash: Leash) -> None:
        self._dispatch(which, "relay", leash)

    @rule(which=_WHICH, duty=st.sampled_from(_DUTIES), leash=_LEASHES)
    def maintain(self, which: int, duty: str, leash: Leash) -> None:
        self._dispatch(which, duty, leash)

    def _dispatch(self, which: int, duty: str, leash: Leash) -> None:
        dispatcher = self.world.dispatchers[which % len(self.world.dispatchers)]
        dispatcher.begin(duty)
        self.perform(duty, self.world.run(dispatcher, leash.calls, leash.fate))

    @rule(which=_WHICH)
    def start_or_stop_consumer(self, which: int) -> None:
        consumers = self.world.consumers
        if len(consumers) < _MOST_CONSUMERS:
            self.world.start_consumer()
            self.perform("start", self.ground.loop.idle())
        else:
            consumers[which % len(consumers)].stop()
            self.perform("stop", self.ground.loop.idle())

    @rule(seconds=st.sampled_from(_CLOCK))
    def pass_time(self, seconds: float) -> None:
        self.perform("clock", self.world.advance(seconds))

    # Messages.

    @precondition(lambda self: self.world.queue.messages)
    @rule(which=_WHICH, what=st.sampled_from(_DISTURBANCES))
    def disturb_messages(self, which: int, what: str) -> None:
        queue = self.world.queue
        message = queue.pick(which)
        assert message is not None
        match what:
            case "lose":
                queue.lose(message)
            case "repeat":
                queue.repeat(message)
            case "delay":
                queue.delay(message, 90)
            case "show":
                queue.show(message)
            case "mix":
                queue.mix(which)
            case _:
                queue.purge()
        self.perform(what, self.ground.loop.idle())

    def _submit(self, asked: dict[str, Any], owner: str, leash: Leash) -> None:
        key = f"key-{len(self.world.asked)}"
        inputs = [{"number": number} for number in range(asked["inputs"])]
        now = dt.datetime.now(dt.UTC)
        times: dict[str, Any] = {
            name: (now + dt.timedelta(seconds=asked[name])).isoformat()
            for name in ("scheduledFor", "expiresAt")
            if name in asked
        }
        self.world.asked[key] = owner, {**asked, "inputs": inputs, **times}
        self.perform("submit", self.world.submit(key, leash.calls, leash.fate))

    def _ask(self, path: str, asking: Asking, owner: str, leash: Leash) -> None:
        step = self.world.ask(
            f"/{path}", asking.document, owner=owner, calls=leash.calls, fate=leash.fate
        )
        self.perform(asking.path, step)


async def _say(piece: Piece, sayings: list[Saying]) -> None:
    say(piece, sayings)


def _by_number(job: Any) -> str:
    return str(job["key"])
