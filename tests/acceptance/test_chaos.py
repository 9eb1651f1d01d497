"""Processes are killed, held up past their leases and told to stop, at random; nothing gets lost.

What happens is drawn from a seed, which is printed, and tied to progress instead of to time: each
disturbance comes when so many inputs are done. Longer, and the same once more, by hand::

    CHAOS_INPUTS=20000 CHAOS_DISTURBANCES=60 python -m pytest -s tests/acceptance/test_chaos.py
    CHAOS_SEED=1234 python -m pytest -s tests/acceptance/test_chaos.py
"""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from uuid import UUID

import pytest

from localstack import processes
from tests.acceptance.fleet import Member
from tests.acceptance.ledger import inputs, with_some_files
from tests.acceptance.site import Site
from tests.platform import eventually, seeded

pytestmark = pytest.mark.acceptance

INPUTS = int(os.environ.get("CHAOS_INPUTS", "1500"))
DISTURBANCES = int(os.environ.get("CHAOS_DISTURBANCES", "10"))
CONSUMERS = int(os.environ.get("CHAOS_CONSUMERS", "3"))
DISPATCHERS = int(os.environ.get("CHAOS_DISPATCHERS", "2"))
SEED = int(os.environ.get("CHAOS_SEED", str(random.SystemRandom().randrange(1_000_000))))
LEASE_SECONDS = 2
BRIEF = {
    "HAULAGE_LEASE_SECONDS": LEASE_SECONDS,
    "HAULAGE_RELAY_LOCK_SECONDS": LEASE_SECONDS,
    "HAULAGE_RESEND_AFTER_SECONDS": 4 * LEASE_SECONDS,
    "HAULAGE_CONCURRENCY": 4,
    # A process that is stopped inside a transaction holds its locks for as long as this.
    "HAULAGE_IDLE_IN_TRANSACTION_TIMEOUT_SECONDS": 2 * LEASE_SECONDS,
}


@dataclass(frozen=True, slots=True)
class Disturbance:
    """What happens to which process, once so many inputs are done."""

    after: int
    what: str
    role: str
    number: int


def drawn(seed: int) -> list[Disturbance]:
    chance = seeded(seed)
    marks = sorted(chance.sample(range(1, INPUTS * 9 // 10), DISTURBANCES))
    disturbances = []
    for mark in marks:
        what = chance.choice(("kill", "kill", "hold up", "stop"))
        role = chance.choice(("consumer", "consumer", "dispatcher"))
        number = chance.randrange(CONSUMERS if role == "consumer" else DISPATCHERS)
        disturbances.append(Disturbance(mark, what, role, number))
    return disturbances


@dataclass
class Crew:
    """The processes of one role; whoever leaves is replaced."""

    site: Site
    role: str
    members: list[Member] = field(default_factory=list)
    held_up: dict[int, float] = field(default_factory=dict)
    disturbed: list[Member] = field(default_factory=list)

    def hire(self) -> Member:
        return self.site.fleet.start(self.role, **BRIEF)

    def suffer(self, disturbance: Disturbance) -> None:
        member = self.members[disturbance.number]
        self.disturbed.append(member)
        if disturbance.what == "hold up":
            member.send(signal.SIGSTOP)
            # Measured by the clock of whoever holds up; only how long it is matters, not when.
            self.held_up[disturbance.number] = time.monotonic() + 2 * LEASE_SECONDS
            return
        member.send(signal.SIGKILL if disturbance.what == "kill" else signal.SIGTERM)
        self.release(disturbance.number)
        self.members[disturbance.number] = self.hire()

    def release(self, number: int) -> None:
        self.held_up.pop(number, None)
        self.members[number].send(signal.SIGCONT)

    def release_the_rested(self) -> None:
        now = time.monotonic()
        for number in [number for number, until in self.held_up.items() if until <= now]:
            self.release(number)


async def carried_through(
    site: Site, job_id: UUID, crews: Sequence[Crew], disturbances: Sequence[Disturbance]
) -> None:
    """Disturb as drawn until the job is over."""
    by_role = {crew.role: crew for crew in crews}
    to_come = list(disturbances)

    async def is_over() -> bool:
        for crew in crews:
            crew.release_the_rested()
        job = await site.platform.job(job_id)
        while to_come and to_come[0].after <= job.succeeded:
            one = to_come.pop(0)
            by_role[one.role].suffer(one)
        return job.finished_at is not None and not any(crew.held_up for crew in crews)

    timeout_seconds = 180 + INPUTS / 20 + 15 * DISTURBANCES
    await eventually(is_over, timeout_seconds=timeout_seconds, pause_seconds=0.02)
    assert not to_come


async def test_each_input_takes_effect_and_counts_once_whatever_happens_to_whom(site: Site) -> None:
    disturbances = drawn(SEED)
    print(f"\n{site.mode}: CHAOS_SEED={SEED} {[astuple(one) for one in disturbances]}")
    consumers, dispatchers = Crew(site, "consumer"), Crew(site, "dispatcher")
    consumers.members = [consumers.hire() for _ in range(CONSUMERS)]
    dispatchers.members = [dispatchers.hire() for _ in range(DISPATCHERS)]
    await site.fleet.ready(*consumers.members, *dispatchers.members)

    began = time.monotonic()
    bodies = with_some_files(inputs(INPUTS, work_ms=15))
    job_id = await site.submit(bodies, chunk_size=10)
    await carried_through(site, job_id, (consumers, dispatchers), disturbances)
    seconds = time.monotonic() - began
    await site.check(job_id)
    runs = site.ledger.runs()
    assert set(runs) == set(range(INPUTS))
    site.fleet.none_failed()
    for member in (*consumers.members, *dispatchers.members):
        assert not processes.is_gone(member.identity), processes.last_words(member.log)

    charges = await site.witness.charges(job_id)
    lost = await site.platform.rows("SELECT error_message, count(*) AS n FROM attempt GROUP BY 1")
    disturbed = {member.pid for member in consumers.disturbed}
    undisturbed = sum(row.n for row in lost if _pid(row.error_message) not in disturbed)
    done = Counter(one.what for one in disturbances)
    print(
        f"{site.mode}: {INPUTS} inputs in {seconds:.1f} s, {done['kill']} killed,"
        f" {done['hold up']} held up, {done['stop']} told to stop;"
        f" {sum(runs.values()) - INPUTS} runs repeated, {charges.total()} attempts charged,"
        f" {undisturbed} of them to whom the machine was too slow"
    )


def _pid(message: str) -> int:
    """Give the process of the worker that a charge names: ``worker host:pid:token vanished …``."""
    return int(message.split(":")[1])
