"""A world of one example: its processes and queues, its clock, and what its clients were told."""

import datetime as dt
import json
from collections import Counter
from typing import Any

import sqlalchemy as sa
from sqlalchemy import text

from api.auth import key_digest, new_key
from dispatcher.doctor import examine
from infra.database import Database
from infra.settings import Settings
from schema.ids import uuid7
from schema.statements.doctor import CHECKS
from schema.statements.keys import create_key
from schema.tables import metadata
from tests.platform import settings_for
from tests.simulation import model
from tests.simulation.gate import Fate
from tests.simulation.loop import SimulatedLoop
from tests.simulation.processes import Api, ConsumerProcess, Dispatcher, Process, Surroundings
from tests.simulation.queues import FaultyQueue, NeighbourClock

LEASE_SECONDS = 60
RESEND_AFTER_SECONDS = 120
OWNERS = ("acme", "bolt")
_QUEUE, _DEAD, _EVENTS = "http://queues/work", "http://queues/dead", "http://queues/events"
_MOST_RECEIVES, _NEVER = 6, 10_000
_ALL_JOBS = dict.fromkeys("JIODA", "")
# The doctor's statements in one, as this asks after every step.
_DOCTOR = text(
    "\nUNION ALL\n".join(
        f"SELECT '{one.name}' AS name, job, detail FROM ({one.sql.format(**_ALL_JOBS)}) AS found"
        for one in CHECKS
        if one.always
    )
)
_TABLES = [table for table in metadata.sorted_tables if table.name != "index_level"]
# What else of a table remembers a time: how far a redrive of letters has come.
_REMEMBERED = {
    "redrive": """, cursor = CASE WHEN source = 'dlq' AND cursor IS NOT NULL THEN jsonb_set(
        cursor, '{0}', to_jsonb((cursor ->> 0)::timestamptz - CAST(:ago AS interval)))
        ELSE cursor END"""
}


def simulated_settings(database_url: str, mode: str) -> Settings:
    changes: dict[str, Any] = {
        "lease_seconds": LEASE_SECONDS,
        "resend_after_seconds": RESEND_AFTER_SECONDS,
        "relay_lock_seconds": 30,
        "receive_wait_seconds": 20,
        "poll_floor_seconds": 5,
        "maintenance_interval_seconds": 5,
        "drain_seconds": 25,
        "concurrency": 3,
        "prefetch_inputs": 6,
        "receive_entries": 3,
        "copy_from_inputs": 6,
        "events_queue_url": _EVENTS,
        "dead_letter_queue_url": _DEAD,
    }
    if mode == "sqs":
        changes |= {"consumer_mode": "sqs-consumer", "queue_url": _QUEUE}
    return settings_for(database_url, **changes)


class World:
    """Everything of one example; ``open`` before the first step, ``close`` after the last."""

    def __init__(
        self, loop: SimulatedLoop, settings: Settings, database: Database, met: Counter[str]
    ) -> None:
        self.loop = loop
        self.settings = settings
        self.clock = NeighbourClock()
        self.queue = FaultyQueue("work", self.clock, most_receives=_MOST_RECEIVES)
        self.queue.dead = FaultyQueue("dead", self.clock, most_receives=_NEVER)
        self.events = FaultyQueue("events", self.clock, most_receives=_NEVER)
        self.consumers: list[ConsumerProcess] = []
        self.dispatchers: list[Dispatcher] = []
        self.before = model.NOTHING
        # Submissions by idempotency key: what is not answered is sent again.
        self.asked: dict[str, tuple[str, dict[str, Any]]] = {}
        self.accepted: dict[str, str] = {}
        self._database = database
        self._keys: dict[str, str] = {}
        self._claims: dict[int, tuple[int, int]] = {}
        self._names = Counter[str]()
        self._met = met
        queues = {_QUEUE: self.queue, _DEAD: self.queue.dead, _EVENTS: self.events}
        self._around = Surroundings(
            loop, settings, database, queues, self.wake, self.tell, self._meet
        )
        self.api = Api(self._name("api"), self._around)

    @property
    def by_sqs(self) -> bool:
        return self.settings.consumer_mode == "sqs-consumer"

    async def open(self) -> None:
        self.loop.restart()
        names = ", ".join(table.name for table in _TABLES)
        await self._database.fetch(text(f"TRUNCATE {names} RESTART IDENTITY"))
        await self._database.fetch(text("ALTER SEQUENCE job_number RESTART"))
        for owner in OWNERS:
            self._keys[owner] = new_key()
            digest = key_digest(self._keys[owner])
            assert digest is not None
            statement = create_key(
                id=uuid7(), owner_id=uuid7(), owner=owner, role="owner", digest=digest,
                label="simulation", expires_at=None,
            )  # fmt: skip
            await self._database.fetch(statement)
        self.dispatchers = [self._new_dispatcher(), self._new_dispatcher()]
        self.start_consumer()
        self.start_consumer()

    async def close(self) -> None:
        for process in (self.api, *self.dispatchers, *self.consumers):
            await process.die()

    def start_consumer(self) -> None:
        name = self._name("consumer")
        self.consumers.append(ConsumerProcess(name, self._around, self._claims))

    def wake(self) -> None:
        for consumer in self.consumers:
            consumer.listener.wake()

    def tell(self) -> None:
        for consumer in self.consumers:
            consumer.listener.tell_controlled()

    async def advance(self, seconds: float, *, hosts_sleep: bool = False) -> None:
        """Move every clock on. The database's stands, so all it knows moves back instead.

        Hosts that sleep do not notice: a consumer takes leases that have lapsed for its own.
        """
        shifts = []
        for table in _TABLES:
            times = [
                column.name for column in table.columns if isinstance(column.type, sa.DateTime)
            ]
            moves = ", ".join(f"{name} = {name} - CAST(:ago AS interval)" for name in times)
            if times:
                moves += _REMEMBERED.get(table.name, "")
                shifts.append(f"moved_{table.name} AS (UPDATE {table.name} SET {moves})")
        ago = dt.timedelta(seconds=seconds)
        statement = text(f"WITH {', '.join(shifts)} SELECT 1").bindparams(
            sa.bindparam("ago", ago, sa.Interval)
        )
        await self._database.fetch(statement)
        self.clock.seconds += seconds
        if not hosts_sleep:
            self.loop.advance(seconds)

    async def submit(self, key: str, calls: int, fate: Fate) -> None:
        """Send a submission, perhaps once more."""
        owner, document = self.asked[key]
        headers = {"Idempotency-Key": key, "X-Correlation-Id": f"simulated-{key}"}
        answer = await self.ask(
            "/jobs", document, owner=owner, more=headers, calls=calls, fate=fate
        )
        if answer is not None and answer[0] == 202:
            job = answer[1]["jobId"]
            assert self.accepted.setdefault(key, job) == job, "one key made two jobs"

    async def ask(
        self,
        path: str,
        document: Any,
        *,
        owner: str,
        more: dict[str, str] | None = None,
        calls: int = 100,
        fate: Fate = Fate.WELL,
    ) -> tuple[int, Any] | None:
        headers = {"Authorization": f"Bearer {self._keys[owner]}", **(more or {})}
        answer = await self.api.ask(path, document, headers=headers, calls=calls, fate=fate)
        if self.api.is_dead:
            self.api = Api(self._name("api"), self._around)
        if answer is None:
            return None
        assert answer.status_code in (200, 202, 409, 422, 503), answer.text
        self.wake()
        self.tell()
        return answer.status_code, answer.json()

    def owner_of(self, job: Any) -> str:
        key = job["idempotency_key"]
        return self.asked[key][0]

    async def run(self, process: Process, calls: int, fate: Fate, *, until: str = "") -> int:
        """Let calls of a process go; what died or has ended is replaced or forgotten."""
        gone = await process.go_on(calls, fate, until=until)
        self.consumers = [one for one in self.consumers if not one.is_dead and not one.is_gone]
        self.dispatchers = [
            self._new_dispatcher() if one.is_dead else one for one in self.dispatchers
        ]
        return gone

    async def check(self) -> None:
        """Assert every invariant, by the model and by the doctor."""
        for process in (self.api, *self.dispatchers, *self.consumers):
            process.check()
        after = await self._read()
        if after is not self.before:
            model.check(self.before, after, claims=self._claims)
            self._check_promises(after)
            found = await self._database.fetch(_DOCTOR)
            assert not found, found
            self.before = after
        if self.by_sqs:
            assert self.queue.dead is not None
            model.check_deliveries(
                after,
                in_queue=self.queue.entry_ids(),
                lost=self.queue.lost,
                drained=self.queue.dead.deleted,
            )
            for message in self.queue.messages:
                model.check_message(message.body, message.attributes, after)

    def _check_promises(self, now: model.Snapshot) -> None:
        """What was accepted is there, whole, and once."""
        by_key = {job["idempotency_key"]: job for job in now.jobs.values()}
        assert len(by_key) == len(now.jobs), "one key made two jobs"
        for key, job in by_key.items():
            assert job["correlation_id"] == f"simulated-{key}", job
            assert job["total"] == len(self.asked[key][1]["inputs"]), job
            assert sum(job_id == job["id"] for job_id in _jobs_of_inputs(now)) == job["total"]
        for key, accepted in self.accepted.items():
            assert by_key[key]["key"] == accepted, f"an accepted job is gone: {accepted}"

    def told_deaths(self) -> set[tuple[str, int]]:
        told = (json.loads(message.body) for message in self.events.messages)
        return {(event["job"], event["ordinal"]) for event in told}

    async def examine_all(self) -> None:
        findings = await examine(self._database, patience_seconds=0)
        assert not findings, [(found.check.name, found.breaches) for found in findings]

    async def check_empty(self) -> None:
        """Assert that retention leaves no row but the owners and their keys."""
        left = await self._read()
        rows = (left.jobs, left.inputs, left.entries, left.attempts, left.letters, left.redrives)
        assert not any((*rows, left.parked)), left.text

    async def _read(self) -> model.Snapshot:
        return await model.read(self._database, self.before, moved_seconds=self.clock.seconds)

    def _new_dispatcher(self) -> Dispatcher:
        return Dispatcher(self._name("dispatcher"), self._around)

    def _name(self, role: str) -> str:
        self._names[role] += 1
        return f"{role} {self._names[role]}"

    def _meet(self, probe: str, fate: Fate) -> None:
        self._met[f"{probe} {fate.name}"] += 1


def _jobs_of_inputs(now: model.Snapshot) -> list[str]:
    return [input_["job_id"] for input_ in now.inputs.values()]
