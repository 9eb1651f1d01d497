"""Running a world to quiet: nothing goes wrong any more, so everything must come to its end."""

from tests.simulation.gate import Fate
from tests.simulation.processes import Process
from tests.simulation.work import Saying, say
from tests.simulation.world import World

_MOST_ROUNDS = 40
_MOST_CALLS = 500
_ROUND_SECONDS = 65.0
_RETENTION_SECONDS = 400 * 86_400.0
_ENDED = {"COMPLETED", "FAILED", "CANCELLED", "EXPIRED"}


async def run_to_quiet(world: World) -> None:
    """Let everything go well until nothing is left; fail if that takes too many rounds."""
    for _ in range(_MOST_ROUNDS):
        await _round(world)
        await world.check()
        if _is_quiet(world):
            break
        await world.advance(_ROUND_SECONDS)
    _check_quiet(world)
    await world.examine_all()
    await _outlive_retention(world)


async def _outlive_retention(world: World) -> None:
    """Let the pruner come when all has been kept for long enough: nothing is left behind."""
    await world.advance(_RETENTION_SECONDS)
    dispatcher = world.dispatchers[0]
    for _ in range(2):
        dispatcher.begin("pruner")
        await world.run(dispatcher, _MOST_CALLS, Fate.WELL)
    await world.check_empty()


async def _round(world: World) -> None:
    for key in sorted(set(world.asked) - set(world.accepted)):
        await world.submit(key, 100, Fate.WELL)
    for job in world.before.jobs.values():
        if job["status"] == "PAUSED":
            await world.ask(f"/jobs/{job['key']}/resume", {}, owner=world.owner_of(job))
    if not world.consumers:
        world.start_consumer()
    for dispatcher in list(world.dispatchers):
        for duty in dispatcher.duties:
            await _exhaust(world, dispatcher)
            dispatcher.begin(duty)
        await _exhaust(world, dispatcher)
    for consumer in list(world.consumers):
        await _exhaust(world, consumer)
        while consumer.bench.pieces:
            say(consumer.bench.pieces[0], [Saying.DONE])
            await _exhaust(world, consumer)


async def _exhaust(world: World, process: Process) -> None:
    """Let all calls of a process go, and those that follow from them."""
    if await world.run(process, _MOST_CALLS, Fate.WELL):
        await world.check()
    assert process.gate.next_call() is None, "it calls without end"


def _is_quiet(world: World) -> bool:
    now = world.before
    assert world.queue.dead is not None
    return (
        all(job["status"] in _ENDED and not job["sweeping"] for job in now.jobs.values())
        and all(redrive["finished_at"] for redrive in now.redrives.values())
        and not now.entries
        and not world.queue.messages
        and not world.queue.dead.messages
    )


def _check_quiet(world: World) -> None:
    now = world.before
    for job in now.jobs.values():
        assert job["status"] in _ENDED, f"never ended: {job}"
    for input_ in now.inputs.values():
        assert input_["entry_id"] is None, f"never finished: {input_}"
    assert not now.entries, now.entries
    assert not world.queue.messages, [message.body for message in world.queue.messages]
    assert world.queue.dead is not None
    dead = world.queue.dead.messages
    assert not dead, [(message.body, message.receives, message.state) for message in dead]
    assert all(redrive["finished_at"] for redrive in now.redrives.values()), now.redrives
    assert _is_quiet(world), now.jobs
    assert all(message["resolved_at"] for message in now.parked), now.parked
    died = {
        (attempt["job_id"], attempt["ordinal"])
        for attempt in now.attempts
        if attempt["status"] == "DLQ"
    }
    assert died <= world.told_deaths(), "somebody died, and nobody was told"
