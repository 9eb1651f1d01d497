"""Slots and who has them next, and how much is taken in for them."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from consumer.executor import Executor
from consumer.intake import Intake, Room
from consumer.lease import Lease
from infra.queue.protocol import Claim, ClaimedInput
from schema.outcome import Outcome, Succeeded
from tests.claims import claim_of


class Runner:
    """Runs until it is told what came of an input, by the number that the input holds."""

    together = 1

    def __init__(self) -> None:
        self.started: list[int] = []
        self.said: dict[int, asyncio.Future[Outcome]] = {}
        self.is_deaf = False

    async def run(self, claim: Claim, inputs: Sequence[ClaimedInput]) -> list[Outcome]:
        (input_,) = inputs
        number = int(input_.body)
        self.started.append(number)
        self.said[number] = said = asyncio.get_running_loop().create_future()
        while True:
            try:
                return [await asyncio.shield(said)]
            except asyncio.CancelledError:
                if not self.is_deaf:
                    raise


class Bench:
    """An executor, and what it told of which input."""

    def __init__(self, slots: int, **limits_seconds: float) -> None:
        self.stop = asyncio.Event()
        self.intake = Intake(slots=slots, prefetch_inputs=0)
        self.executor = Executor(
            self.intake,
            slots=slots,
            stop=self.stop,
            grace_seconds=0.01,
            limits_seconds=limits_seconds,
        )
        self.runner = Runner()
        self.told: list[tuple[int, Outcome]] = []

    def begin(self, *numbers: int, **changes: Any) -> tuple[Lease, asyncio.Task[None]]:
        self.intake.took(Room(0, 0.0), [len(numbers)])
        lease = Lease(claim_of("noop", *numbers, **changes), expires_at=0.0)
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


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


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
    bench = Bench(slots=1)
    bench.runner.is_deaf = True
    lease, first = bench.begin(1)
    _, second = bench.begin(2)
    await turns()
    lease.interrupt()
    await first
    assert (bench.executor.withheld, bench.executor.capacity) == (1, 0)
    assert bench.runner.started == [1]
    await bench.say(1)
    assert bench.executor.withheld == 0
    assert bench.runner.started == [1, 2]
    await bench.say(2)
    await second
    assert bench.told == [(2, Succeeded())], "nothing is recorded of what was interrupted"


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


async def test_a_consumer_takes_one_entry_of_unknown_size_and_then_as_many_as_fit() -> None:
    intake = Intake(slots=16, prefetch_inputs=0)
    room = await intake.room(10)
    assert room.entries == 1, "one may fill every slot, and others may be idle"
    intake.took(room, [2])
    intake.forgo(inputs=2)
    room = await intake.room(10)
    assert room.entries == 8
    intake.took(room, [100])
    waiting = asyncio.create_task(intake.room(10))
    await asyncio.sleep(0)
    assert not waiting.done()
    intake.forgo(inputs=100)
    assert (await waiting).entries < 8


async def test_slots_are_refilled_at_once_and_what_waits_beyond_them_by_halves() -> None:
    intake = Intake(slots=10, prefetch_inputs=100)
    intake.took(await intake.room(1), [10])
    room = await intake.room(100)
    assert room.entries == 9
    intake.took(room, [10] * 9)
    waiting = asyncio.create_task(intake.room(100))
    intake.forgo(inputs=49)
    await asyncio.sleep(0)
    assert not waiting.done()
    intake.forgo(inputs=1)
    assert (await waiting).entries == 5

    intake.took(Room(0, 0.0), [])
    first, second = (asyncio.create_task(intake.room(100)) for _ in range(2))
    await asyncio.sleep(0)
    intake.forgo(inputs=50)
    await turns()
    assert (first.done(), second.done()) == (True, False), "the room is one receiver's"
    second.cancel()

    without = Intake(slots=10, prefetch_inputs=0)
    without.took(await without.room(1), [1] * 10)
    without.forgo(inputs=1)
    assert (await without.room(10)).entries == 1
