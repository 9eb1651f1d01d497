"""How much is taken in: what slots can take, and what would start soon after."""

import asyncio

from consumer.intake import Intake, Room
from tests.claims import turns


async def test_a_consumer_takes_one_entry_of_unknown_size_and_then_as_many_as_fit() -> None:
    intake = Intake(slots=16, prefetch_inputs=0)
    room = await intake.room(10)
    assert room.entries == 1, "one may fill every slot, and others may be idle"
    intake.took(room, [("noop", 2)])
    intake.forgo("noop", inputs=2)
    room = await intake.room(10)
    assert room.entries == 8
    intake.took(room, [("noop", 100)])
    waiting = asyncio.create_task(intake.room(10))
    await asyncio.sleep(0)
    assert not waiting.done()
    intake.forgo("noop", inputs=100)
    assert (await waiting).entries < 8


async def test_slots_are_refilled_at_once_and_what_waits_beyond_them_by_halves() -> None:
    intake = Intake(slots=10, prefetch_inputs=100)
    intake.took(await intake.room(1), [("noop", 10)])
    room = await intake.room(100)
    assert room.entries == 9
    intake.took(room, [("noop", 10)] * 9)
    waiting = asyncio.create_task(intake.room(100))
    intake.forgo("noop", inputs=49)
    await asyncio.sleep(0)
    assert not waiting.done()
    intake.forgo("noop", inputs=1)
    assert (await waiting).entries == 5

    intake.took(Room(0, 0.0), [])
    first, second = (asyncio.create_task(intake.room(100)) for _ in range(2))
    await asyncio.sleep(0)
    intake.forgo("noop", inputs=50)
    await turns()
    assert (first.done(), second.done()) == (True, False), "the room is one receiver's"
    second.cancel()

    without = Intake(slots=10, prefetch_inputs=0)
    without.took(await without.room(1), [("noop", 1)] * 10)
    without.forgo("noop", inputs=1)
    assert (await without.room(10)).entries == 1


async def test_what_waits_is_what_would_start_within_the_time_and_never_less_than_the_slots() -> (
    None
):
    intake = Intake(slots=16, prefetch_inputs=2_000, prefetch_seconds=2)
    intake.took(await intake.room(1), [("noop", 100)])
    intake.adapt(16, {}, lambda _: 0.001)
    assert intake.target == 2_000, "no more than the setting says"
    intake.adapt(16, {}, lambda _: 0.1)
    assert intake.target == 320
    assert (await intake.room(100)).entries == 2
    intake.adapt(16, {}, lambda _: 1.0)
    assert intake.target == 32
    intake.adapt(16, {}, lambda _: 60.0)
    assert intake.target == 16
    intake.forgo("noop", inputs=100)
    intake.adapt(16, {}, lambda _: 0.001)
    assert intake.target == 16, "the last pace counts until others are in hand"


async def test_of_kinds_in_hand_together_the_mean_counts() -> None:
    intake = Intake(slots=10, prefetch_inputs=1_000, prefetch_seconds=2)
    intake.took(await intake.room(1), [("quick", 99), ("slow", 1)])
    intake.adapt(10, {}, {"quick": 0.0, "slow": 10.0}.__getitem__)
    assert intake.target == 200


async def test_a_kind_with_few_slots_is_full_and_keeps_none_from_the_others() -> None:
    intake = Intake(slots=16, prefetch_inputs=0, prefetch_seconds=2, kinds=["failing", "other"])
    intake.took(await intake.room(1), [("failing", 100)])
    waiting = asyncio.create_task(intake.room(10))
    await turns()
    assert not waiting.done()
    intake.adapt(16, {"failing": 1, "other": 16}, lambda _: 1.0)
    await turns()
    assert waiting.done()
    assert intake.full == {"failing"}
    intake.took(waiting.result(), [("other", 15)])
    waiting = asyncio.create_task(intake.room(10))
    await turns()
    assert not waiting.done(), "every slot has its input"
    intake.forgo("failing", inputs=99)
    assert intake.full == set()
    intake.adapt(16, {"failing": 16, "other": 16}, lambda _: 1.0)
    waiting.cancel()


async def test_when_every_kind_is_full_nothing_is_claimed() -> None:
    intake = Intake(slots=16, prefetch_inputs=0, prefetch_seconds=2, kinds=["only"])
    intake.took(await intake.room(1), [("only", 100)])
    intake.adapt(1, {"only": 1}, lambda _: 1.0)
    waiting = asyncio.create_task(intake.room(10))
    await turns()
    assert not waiting.done()
    intake.forgo("only", inputs=100)
    assert (await waiting).entries == 1


async def test_without_slots_there_is_no_room_even_for_one() -> None:
    intake = Intake(slots=2, prefetch_inputs=10)
    intake.resize(0)
    waiting = asyncio.create_task(intake.room(10))
    await turns()
    assert not waiting.done()
    intake.resize(1)
    assert (await waiting).entries == 1
