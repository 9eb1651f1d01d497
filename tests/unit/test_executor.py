"""Slots and who has them next, and what is given back."""

import asyncio
from collections.abc import Sequence

import pytest

from consumer.executor import Executor
from consumer.intake import Intake, Room
from consumer.lease import Lease
from infra.queue.protocol import Claim, ClaimedInput
from schema.outcome import Outcome, Succeeded
from tests.claims import claim_of, turns


class Runner:
    """Runs until it is told what came of an input, by the number that the input holds."""

    together = 1

    def __init__(self) -> None:
        self.started: list[int] = []
        self.said: dict[int, asyncio.Future[Outcome]] = {}
        self.is_deaf = False

    async def run(self, claim: Claim, inputs: Sequence[ClaimedInput]) -> list[Outcome]:
        number = int(inputs[0].body)
        self.started.append(number)
        self.said[number] = said = asyncio.get_running_loop().create_future()
        while True:
            try:
                return [await asyncio.shield(said)] * len(inputs)
            except asyncio.CancelledError:
                if not self.is_deaf:
                    raise


class Bench:
    """An executor, and what it told of which input."""

    def __init__(self, slots: int, **limits_seconds: float) -> None:
        self.stop = asyncio.Event()
        self.now = 0.0
        self.intake = Intake(slots=slots, prefetch_inputs=0)
        self.executor = Executor(
            self.intake,
            slots=slots,
            stop=self.stop,
            grace_seconds=0.01,
            limits_seconds=limits_seconds,
            clock=lambda: self.now,
        )
        self.runner = Runner()
        self.told: list[tuple[int, Outcome]] = []

    def begin(self, *numbers: int, kind: str = "noop") -> tuple[Lease, asyncio.Task[None]]:
        lease = Lease(claim_of(kind, *numbers), expires_at=0.0)
        self.intake.took(Room(0, 0.0), [(kind, len(numbers))])
        return lease, asyncio.create_task(self.executor.run(lease, self.runner, self.tell))

    def tell(
        self,
        _lease: Lease,
        inputs: Sequence[ClaimedInput],
        outcomes: Sequence[Outcome],
        _seconds: float,
    ) -> None:
        self.told += [
            (int(input_.body), outcome) for input_, outcome in zip(inputs, outcomes, strict=True)
        ]

    async def say(self, *numbers: int) -> None:
        for number in numbers:
            self.runner.said[number].set_result(Succeeded())
        await turns()


async def test_claims_have_their_slots_in_the_order_in_which_they_came() -> None:
    bench = Bench(slots=2)
    _, first = bench.begin(1, 2, 3)
    _, second = bench.begin(4, 5)
    await turns()
    assert bench.runner.started == [1, 2]
    await bench.say(2)
    assert bench.runner.started == [1, 2, 3]
    await bench.say(1)
    assert bench.runner.started == [1, 2, 3, 4], "one slow input holds up no slot but its own"
    await bench.say(3)
    assert first.done()
    await bench.say(4, 5)
    await second
    assert [number for number, _ in bench.told] == [2, 1, 3, 4, 5]


async def test_nothing_further_starts_of_a_halted_claim_and_others_go_on() -> None:
    bench = Bench(slots=1)
    halted, first = bench.begin(1, 2)
    _, second = bench.begin(3)
    await turns()
    halted.halt()
    await bench.say(1)
    assert first.done()
    assert bench.runner.started == [1, 3]
    await bench.say(3)
    await second
    assert bench.intake.in_hand == 0


async def test_nothing_starts_once_the_process_was_told_to_stop() -> None:
    bench = Bench(slots=1)
    _, first = bench.begin(1, 2)
    _, second = bench.begin(3)
    await turns()
    bench.stop.set()
    bench.executor.fill()
    await second
    await bench.say(1)
    await first
    assert [number for number, _ in bench.told] == [1]


async def test_a_slot_whose_run_does_not_end_is_missing_until_it_does() -> None:
    bench = Bench(slots=2)
    bench.runner.is_deaf = True
    lease, first = bench.begin(1)
    _, second = bench.begin(2)
    _, third = bench.begin(3)
    await turns()
    lease.interrupt()
    await first
    assert (bench.executor.withheld, bench.executor.capacity) == (1, 1)
    await bench.say(2)
    assert bench.runner.started == [1, 2, 3]
    _, fourth = bench.begin(4)
    await bench.say(1)
    assert bench.executor.withheld == 0
    assert bench.runner.started == [1, 2, 3, 4]
    await bench.say(3, 4)
    await asyncio.gather(second, third, fourth)
    assert [number for number, _ in bench.told] == [2, 3, 4], "nothing is recorded of the first"


async def test_without_a_slot_nothing_is_taken_in_and_what_waits_is_given_back() -> None:
    bench = Bench(slots=1)
    bench.runner.is_deaf = True
    lease, first = bench.begin(1, 2)
    _, second = bench.begin(3)
    await turns()
    lease.interrupt()
    await asyncio.gather(first, second)
    assert bench.executor.capacity == 0
    _, late = bench.begin(4)
    await late
    assert (bench.runner.started, bench.intake.in_hand) == ([1], 0)
    room = asyncio.create_task(bench.intake.room(10))
    await turns()
    assert not room.done()
    await bench.say(1)
    assert room.done()
    _, running = bench.begin(5)
    await turns()
    await bench.say(5)
    await running


async def test_a_kind_at_its_limit_lets_those_pass_that_came_after_it() -> None:
    bench = Bench(slots=3)
    bench.executor.limit(3, {"noop": 1, "other": 3})
    _, slow = bench.begin(1, 2)
    other = [bench.begin(number, kind="other")[1] for number in (3, 4, 5)]
    await turns()
    assert bench.runner.started == [1, 3, 4]
    await bench.say(3)
    assert bench.runner.started == [1, 3, 4, 5]
    bench.executor.limit(3, {"noop": 2, "other": 3})
    await bench.say(4)
    assert bench.runner.started == [1, 3, 4, 5, 2]
    bench.executor.limit(1, {})
    await bench.say(1, 2, 5)
    await asyncio.gather(slow, *other)


async def test_what_will_not_begin_for_long_is_given_back_and_what_has_begun_stays() -> None:
    bench = Bench(slots=2)
    claims = [bench.begin(number, number + 1)[1] for number in range(1, 13, 2)]
    await turns()
    assert bench.executor.give_back(60, lambda _: 0.1) == 0
    # Two slots, and four seconds an input: the fourth claim begins after eight seconds.
    assert bench.executor.give_back(8, lambda _: 4.0) == 2
    await turns()
    assert [claim.done() for claim in claims] == [False] * 4 + [True] * 2
    assert bench.executor.give_back(0, lambda _: 4.0) == 2, "the next one begins at any moment"
    await bench.say(1, 2)
    await bench.say(3, 4)
    assert all(claim.done() for claim in claims)
    assert bench.intake.in_hand == 0


async def test_where_nothing_starts_what_waits_is_given_back_whatever_its_pace() -> None:
    bench = Bench(slots=1)
    _, running = bench.begin(1)
    _, waiting = bench.begin(2)
    await turns()
    bench.now = 7.0
    assert bench.executor.give_back(8, lambda _: 0.001) == 0
    bench.now = 9.0
    assert bench.executor.give_back(8, lambda _: 0.001) == 1
    await waiting
    await bench.say(1)
    await running


async def test_what_ends_in_spite_of_its_interruption_keeps_its_outcome() -> None:
    bench = Bench(slots=1)
    bench.runner.is_deaf = True
    lease, running = bench.begin(1)
    await turns()
    lease.interrupt()
    await bench.say(1)
    await running
    assert bench.told == [(1, Succeeded())]
    assert bench.executor.withheld == 0


async def test_a_claim_that_is_cancelled_ends_with_what_runs_of_it() -> None:
    bench = Bench(slots=1)
    _, running = bench.begin(1, 2)
    await turns()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (bench.runner.started, bench.told) == ([1], [])
    _, after = bench.begin(3)
    await turns()
    await bench.say(3)
    await after


async def test_an_error_that_no_processor_may_raise_ends_the_claim_at_once() -> None:
    class Broken(BaseException):
        pass

    bench = Bench(slots=2)
    _, running = bench.begin(1, 2, 3)
    await turns()
    bench.runner.said[1].set_exception(Broken())
    with pytest.raises(Broken):
        await running
    assert (bench.runner.started, bench.told) == ([1, 2], [])


async def test_an_input_takes_at_least_as_long_as_those_that_run_already_have() -> None:
    bench = Bench(slots=2)
    assert bench.executor.least_seconds("noop") == 0.0
    _, running = bench.begin(1, 2)
    await turns()
    bench.now = 9.0
    assert bench.executor.least_seconds("noop") == 9.0
    bench.runner.together = 3
    _, together = bench.begin(3, 4, 5)
    await bench.say(1)
    bench.now = 15.0
    assert bench.executor.least_seconds("noop") == 2.0
    await bench.say(2, 3)
    await asyncio.gather(running, together)
    assert bench.executor.least_seconds("noop") == 0.0
