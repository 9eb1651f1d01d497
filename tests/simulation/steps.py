"""The steps of a simulation: each is drawn whole, printed whole, and taken on whatever is there."""

import datetime as dt
from collections import Counter
from dataclasses import dataclass
from typing import Any, Protocol

from hypothesis import strategies as st

from schema.lifecycle import EntryType
from tests.simulation.gate import Fate
from tests.simulation.processes import Process
from tests.simulation.work import KINDS, Saying, say
from tests.simulation.world import LEASE_SECONDS, OWNERS, World

MOST_CALLS = 30
_MOST_CONSUMERS = 3
_MOST_JOBS = 8
_DELAY_SECONDS = 90
# Longer than who lost an answer waits before it asks again, and nothing else ends meanwhile.
_MOMENT_SECONDS = 3
_RELAYS = tuple(f"relay {entry_type}" for entry_type in EntryType)
_DUTIES = ("reaper", "promoter", "resender", "finalizer", "expirer", "sweeper", "redriver", "drain")
_REDRIVABLE = ("dlq", "not_found", "cancelled", "expired")
_CLOCK = (1, 6, LEASE_SECONDS / 3 + 1, LEASE_SECONDS + 1, 130, 400)


class Step(Protocol):
    """One step; where there is nothing for it to do, it does nothing, or what leads there."""

    async def take(self, world: World) -> None: ...


@dataclass(frozen=True)
class Leash:
    """How many calls of a process are let go, and what becomes of the last of them.

    The last may be named, by a part of its name. Who goes on then asks again, a moment later,
    whatever was not answered.
    """

    calls: int = MOST_CALLS
    fate: Fate = Fate.WELL
    goes_on: bool = False
    until: str = ""

    async def let_go(self, world: World, process: Process) -> None:
        await world.run(process, self.calls, self.fate, until=self.until)
        if self.goes_on:
            await world.check()
            await world.advance(_MOMENT_SECONDS)
            await world.check()
            await world.run(process, MOST_CALLS, Fate.WELL)

    async def ask(self, world: World, path: str, document: Any, *, owner: str) -> None:
        await world.ask(path, document, owner=owner, calls=self.calls, fate=self.fate)
        if self.goes_on:
            await world.check()
            await world.ask(path, document, owner=owner)


@dataclass(frozen=True)
class Submit:
    """A client submits a job, under a new idempotency key."""

    asked: dict[str, Any]
    owner: str
    leash: Leash

    async def take(self, world: World) -> None:
        if len(world.asked) == _MOST_JOBS:
            return
        key = f"key-{len(world.asked)}"
        now = dt.datetime.now(dt.UTC)
        times: dict[str, Any] = {
            name: (now + dt.timedelta(seconds=self.asked[name])).isoformat()
            for name in ("scheduledFor", "expiresAt")
            if name in self.asked
        }
        inputs = [{"number": number} for number in range(self.asked["inputs"])]
        document = {**self.asked, "inputs": inputs, **times}
        world.asked[key] = self.owner, document
        await world.submit(key, self.leash.calls, self.leash.fate)


@dataclass(frozen=True)
class SubmitAgain:
    """A client repeats a submission, answered or not."""

    which: int
    leash: Leash

    async def take(self, world: World) -> None:
        key = sorted(world.asked)[self.which % len(world.asked)]
        await world.submit(key, self.leash.calls, self.leash.fate)


@dataclass(frozen=True)
class Ask:
    """A client asks something of a job."""

    what: str
    which: int
    leash: Leash
    statuses: frozenset[str] = frozenset()

    async def take(self, world: World) -> None:
        jobs = sorted(world.before.jobs.values(), key=lambda job: str(job["key"]))
        if self.what == "reprocess":
            jobs = [job for job in jobs if any(job[name] for name in _REDRIVABLE)] or jobs
        if not jobs:
            return
        job = jobs[self.which % len(jobs)]
        document = {"statuses": sorted(self.statuses)} if self.statuses else {}
        path = f"/jobs/{job['key']}/{self.what}"
        await self.leash.ask(world, path, document, owner=world.owner_of(job))


@dataclass(frozen=True)
class RedriveLetters:
    """A client asks for all its dead letters to be tried again."""

    owner: str
    leash: Leash

    async def take(self, world: World) -> None:
        await self.leash.ask(world, "/dlq/reprocess", {}, owner=self.owner)


@dataclass(frozen=True)
class Consume:
    """A consumer goes on, once some work of it has ended, if any ends."""

    which: int
    sayings: list[Saying]
    leash: Leash

    async def take(self, world: World) -> None:
        if not world.consumers:
            world.start_consumer()
        consumer = world.consumers[self.which % len(world.consumers)]
        pieces = consumer.bench.pieces
        if pieces and self.sayings:
            say(pieces[self.which % len(pieces)], self.sayings)
        await self.leash.let_go(world, consumer)


@dataclass(frozen=True)
class LoseAnswer:
    """A consumer with work commits, and never hears that it did; it asks once more."""

    which: int
    saying: Saying
    commit: str

    async def take(self, world: World) -> None:
        if not world.consumers:
            world.start_consumer()
        consumer = world.consumers[self.which % len(world.consumers)]
        if not consumer.bench.pieces:
            await _relay(world, self.which)
            await world.check()
            await world.run(consumer, MOST_CALLS, Fate.WELL)
            await world.check()
        # While other inputs of the claim go on, its lease is alive when the answer is missed.
        claims = Counter(piece.claim.entry_id for piece in consumer.bench.pieces)
        pieces = [piece for piece in consumer.bench.pieces if claims[piece.claim.entry_id] > 1]
        pieces = pieces or consumer.bench.pieces
        if pieces:
            say(pieces[self.which % len(pieces)], [self.saying])
        await Leash(MOST_CALLS, Fate.UNANSWERED, True, self.commit).let_go(world, consumer)


async def _relay(world: World, which: int) -> None:
    dispatcher = world.dispatchers[which % len(world.dispatchers)]
    for relay in _RELAYS:
        dispatcher.begin(relay)
    await world.run(dispatcher, MOST_CALLS, Fate.WELL)


@dataclass(frozen=True)
class FinishWork:
    """Work ends, and its consumer has not come to settle it yet."""

    which: int
    sayings: list[Saying]

    async def take(self, world: World) -> None:
        pieces = [piece for one in world.consumers for piece in one.bench.pieces]
        if pieces:
            say(pieces[self.which % len(pieces)], self.sayings)


@dataclass(frozen=True)
class Dispatch:
    """A dispatcher begins a round of some duties, and goes on with what it has begun."""

    which: int
    duties: tuple[str, ...]
    leash: Leash

    async def take(self, world: World) -> None:
        dispatcher = world.dispatchers[self.which % len(world.dispatchers)]
        for duty in self.duties:
            dispatcher.begin(duty)
        await self.leash.let_go(world, dispatcher)


@dataclass(frozen=True)
class StartOrStop:
    """Another consumer starts; once there are enough, one is told to stop."""

    which: int

    async def take(self, world: World) -> None:
        if len(world.consumers) < _MOST_CONSUMERS:
            world.start_consumer()
        else:
            world.consumers[self.which % len(world.consumers)].stop()


@dataclass(frozen=True)
class PassTime:
    """The clocks of all neighbours move on; those of hosts that sleep meanwhile do not."""

    seconds: float
    hosts_sleep: bool

    async def take(self, world: World) -> None:
        await world.advance(self.seconds, hosts_sleep=self.hosts_sleep)


@dataclass(frozen=True)
class Strand:
    """What is due is sent, and a message dies or is lost before anybody receives it."""

    which: int
    dies: bool

    async def take(self, world: World) -> None:
        await _relay(world, self.which)
        message = world.queue.pick(self.which, only_ready=True)
        if message is None:
            return
        if self.dies:
            world.queue.kill(message)
        else:
            world.queue.lose(message)


@dataclass(frozen=True)
class Disturb:
    """Something happens to a message that should not, but does."""

    what: str
    which: int

    async def take(self, world: World) -> None:
        queue = world.queue
        message = queue.pick(self.which)
        if message is None:
            return
        match self.what:
            case "repeat":
                queue.repeat(message)
            case "lose":
                queue.lose(message)
            case "delay":
                queue.delay(message, _DELAY_SECONDS)
            case "show":
                queue.show(message)
            case "mix":
                queue.mix(self.which)
            case _:
                queue.purge()


_FAULTS = [fate for fate in Fate if fate is not Fate.WELL]
_WHICH = st.integers(0, 7)
_LEASHES = st.one_of(
    st.just(Leash()),
    st.builds(Leash, st.integers(1, 3)),
    st.builds(Leash, st.integers(1, 3), st.sampled_from(_FAULTS)),
    st.builds(Leash, st.integers(1, 3), st.just(Fate.UNANSWERED), st.just(True)),
)
# What a consumer commits: outcomes above all, and what it claims, keeps and gives back.
_COMMITS = st.sampled_from(["settle"] * 5 + ["claim", "claim_extend", "claim_release"])
_OWNER = st.sampled_from(OWNERS)
_STATUSES = st.frozensets(st.sampled_from(["DLQ", "NOT_FOUND", "CANCELLED", "EXPIRED"]), min_size=1)
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
_MOVES = st.builds(Ask, st.sampled_from(["pause", "resume", "cancel"]), _WHICH, _LEASHES)
_REDRIVES = st.builds(Ask, st.just("reprocess"), _WHICH, _LEASHES, _STATUSES)
_DISTURBANCES = st.builds(
    Disturb, st.sampled_from(["repeat", "lose", "delay", "show", "mix", "purge"]), _WHICH
)
SUBMIT = st.builds(Submit, _SUBMISSIONS, _OWNER, _LEASHES)
# How often each comes, of as many as there are in all.
_SHARES: tuple[tuple[int, st.SearchStrategy[Step]], ...] = (
    (9, st.builds(Consume, _WHICH, st.lists(st.sampled_from(Saying), max_size=3), _LEASHES)),
    (5, st.builds(Dispatch, _WHICH, st.just(_RELAYS), _LEASHES)),
    (4, st.builds(Dispatch, _WHICH, st.sampled_from(_DUTIES).map(lambda one: (one,)), _LEASHES)),
    (4, st.builds(Dispatch, _WHICH, st.permutations(_DUTIES).map(tuple), _LEASHES)),
    (3, st.builds(FinishWork, _WHICH, st.lists(st.sampled_from(Saying), min_size=1, max_size=3))),
    (6, st.builds(LoseAnswer, _WHICH, st.sampled_from(Saying), _COMMITS)),
    (3, st.builds(Strand, _WHICH, st.booleans())),
    (4, st.builds(PassTime, st.sampled_from(_CLOCK), st.booleans())),
    (3, _DISTURBANCES),
    (3, _MOVES),
    (2, _REDRIVES),
    (1, st.builds(RedriveLetters, _OWNER, _LEASHES)),
    (4, SUBMIT),
    (1, st.builds(SubmitAgain, _WHICH, _LEASHES)),
    (1, st.builds(StartOrStop, _WHICH)),
)
STEPS = st.sampled_from([one for share, one in _SHARES for _ in range(share)]).flatmap(
    lambda step: step
)
