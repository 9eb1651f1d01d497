"""Postgres or the queue is away, at the start or in the middle; no process is started again."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from infra.database import Database
from localstack import processes
from localstack.init.resources import Access
from localstack.interruption import Interruption
from localstack.ports import LOOPBACK, free_port
from localstack.postgres import DISPOSABLE, Cluster, Postgres
from schema.errors import Unavailable
from tests.acceptance.conftest import start_stub
from tests.acceptance.fleet import PATIENCE_SECONDS
from tests.acceptance.ledger import inputs, with_some_files
from tests.acceptance.site import Site, SqsQueueInside
from tests.databases import Databases
from tests.platform import eventually

pytestmark = pytest.mark.acceptance

INPUTS, SOME = 400, 40
QUEUE = "work"
# What an outage leaves in nobody's hands is back soon.
FORGETFUL = {"HAULAGE_LEASE_SECONDS": "3", "HAULAGE_RESEND_AFTER_SECONDS": "4"}


class Server:
    """A Postgres of these tests alone, which comes back on the port that it had."""

    def __init__(self, folder: Path, server_folder: Path | None) -> None:
        self._postgres = Postgres(
            folder / "outages", log=folder / "outages.log", server_folder=server_folder
        )
        self._port = free_port()

    def start(self) -> Cluster:
        return self._postgres.start(
            interruption=Interruption(), port=self._port, max_connections=100, options=DISPOSABLE
        )

    def stop(self) -> None:
        assert self._postgres.stop()

    def crash(self) -> None:
        identity = self._postgres.running()
        assert identity is not None
        processes.stop([identity], grace_seconds=10, number=signal.SIGKILL)

    def remove(self) -> None:
        self._postgres.remove()


@pytest.fixture(scope="module")
def server(short_folder: Path, server_folder: Path | None) -> Iterator[Server]:
    server = Server(short_folder, server_folder)
    yield server
    server.remove()


@pytest.fixture(scope="module")
def postgres(server: Server) -> Cluster:
    return server.start()


@pytest.fixture(scope="module")
def databases(postgres: Cluster) -> Databases:
    return Databases(postgres)


@pytest.fixture
def mortal(site: Site, server: Server) -> Iterator[Site]:
    """A site whose Postgres may be stopped; it runs again before the site is cleared away."""
    yield site
    site.fleet.end()
    server.start()


class Stub:
    """An SQS of one test, which forgets all messages when it stops."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self._stops: list[Callable[[], None]] = []

    @property
    def access(self) -> Access:
        return Access(f"http://{LOOPBACK}:{self._port}")

    @property
    def queue_url(self) -> str:
        return f"{self.access.endpoint_url}/000000000000/{QUEUE}"

    def start(self) -> None:
        identity = start_stub(self._port, self._folder, QUEUE)
        self._stops.append(lambda: processes.stop([identity], grace_seconds=5))

    def stop(self) -> None:
        while self._stops:
            self._stops.pop()()


@pytest.fixture
def stub(tmp_path: Path) -> Iterator[Stub]:
    stub = Stub(tmp_path)
    yield stub
    stub.stop()


@pytest.fixture
def beside(site: Site, stub: Stub) -> Site:
    """A site whose queue is in the stub of the test."""
    own = {"AWS_ENDPOINT_URL_SQS": stub.access.endpoint_url, "HAULAGE_QUEUE_URL": stub.queue_url}
    fleet = type(site.fleet)(site.fleet.folder, dict(site.fleet.environment) | own)
    site.fleet.members = fleet.members  # so that they end with the site
    queue = SqsQueueInside.at(stub.access, stub.queue_url)
    return Site(site.mode, site.platform, site.witness, fleet, site.ledger, queue)


async def under_way(site: Site) -> UUID:
    """Submit a job and wait until some of it is done, and most is not."""
    bodies = with_some_files(inputs(INPUTS, work_ms=20))
    job_id = await site.submit(bodies, chunk_size=5)

    async def some_are_done() -> bool:
        return len(site.ledger.runs()) >= SOME

    await eventually(some_are_done, timeout_seconds=PATIENCE_SECONDS)
    return job_id


async def _answers(site: Site) -> bool:
    """Say whether Postgres answers; the test's own connections were cut as well."""
    try:
        await site.platform.database.ping()
    except Unavailable:
        return False
    return True


async def test_processes_that_start_before_postgres_wait_for_it(
    mortal: Site, server: Server
) -> None:
    server.stop()
    members = [mortal.fleet.start(module) for module in ("api", "dispatcher", "consumer")]
    for member in members:
        assert "database is away" in await member.unready()
    server.start()
    await mortal.fleet.ready(*members)
    await eventually(lambda: _answers(mortal), timeout_seconds=PATIENCE_SECONDS)
    job_id = await mortal.submit(inputs(10))
    await mortal.completed(job_id)
    mortal.fleet.none_failed()


@pytest.mark.parametrize("site", ["sqs"], indirect=True)
async def test_processes_that_start_before_the_queue_wait_for_it(beside: Site, stub: Stub) -> None:
    members = [beside.fleet.start(module) for module in ("dispatcher", "consumer")]
    for member in members:
        assert "sqs is away" in await member.unready()
    job_id = await beside.submit(inputs(10))
    stub.start()
    await beside.fleet.ready(*members)
    await beside.completed(job_id)
    assert not await beside.witness.charges(job_id)
    beside.fleet.none_failed()


@pytest.mark.parametrize("way", ["stop", "crash"])
async def test_postgres_goes_away_in_the_middle_and_comes_back(
    mortal: Site, server: Server, way: str
) -> None:
    members = [mortal.fleet.start("dispatcher", **FORGETFUL)]
    members += [
        mortal.fleet.start("consumer", HAULAGE_CONCURRENCY=4, **FORGETFUL) for _ in range(2)
    ]
    await mortal.fleet.ready(*members)
    job_id = await under_way(mortal)
    server.stop() if way == "stop" else server.crash()
    for member in members:
        assert "database" in await member.unready()
    server.start()
    await mortal.fleet.ready(*members)
    await eventually(lambda: _answers(mortal), timeout_seconds=PATIENCE_SECONDS)
    await mortal.completed(job_id)
    charges = await mortal.witness.charges(job_id)
    assert set(charges.values()) <= {1}, "one outage costs one attempt at most"
    mortal.fleet.none_failed()


@pytest.mark.parametrize("site", ["sqs"], indirect=True)
async def test_the_queue_goes_away_in_the_middle_with_all_its_messages(
    beside: Site, stub: Stub
) -> None:
    stub.start()
    members = [beside.fleet.start("dispatcher", **FORGETFUL)]
    members += [
        beside.fleet.start("consumer", HAULAGE_CONCURRENCY=4, **FORGETFUL) for _ in range(2)
    ]
    await beside.fleet.ready(*members)
    job_id = await under_way(beside)
    stub.stop()
    for member in members:
        assert "sqs is away" in await member.unready()
    stub.start()
    await beside.fleet.ready(*members)
    await beside.completed(job_id)
    assert not await beside.witness.charges(job_id), "leases live in the database"
    assert beside.ledger.runs() == dict.fromkeys(range(INPUTS), 1)
    beside.fleet.none_failed()


async def test_a_settle_that_is_cancelled_for_its_length_is_tried_again(
    site: Site, database: Database
) -> None:
    """As when another session holds the job's row for longer than a statement may take."""
    dispatcher = site.fleet.start("dispatcher")
    consumer = site.fleet.start("consumer", HAULAGE_STATEMENT_TIMEOUT_SECONDS=0.5)
    await site.fleet.ready(dispatcher, consumer)
    job_id = await site.submit(with_some_files(inputs(6, gated=True)), chunk_size=3)

    async def all_began() -> bool:
        return len(site.ledger.marks("began")) == 6

    await eventually(all_began, timeout_seconds=PATIENCE_SECONDS)

    async def hold(connection: AsyncConnection) -> None:
        await connection.execute(text("SELECT id FROM job FOR UPDATE"))
        site.ledger.open_gate()
        await consumer.logged("settle.away")

    await database.run(hold)
    await site.completed(job_id)
    assert site.ledger.runs() == dict.fromkeys(range(6), 1)
    assert not await site.witness.charges(job_id)
    site.fleet.none_failed()


async def test_leases_outlive_a_settle_that_has_to_wait(site: Site, database: Database) -> None:
    """As when another consumer was frozen in the middle of its own settle of the same job."""
    lease_seconds = 3
    dispatcher = site.fleet.start("dispatcher")
    consumer = site.fleet.start("consumer", HAULAGE_LEASE_SECONDS=lease_seconds)
    await site.fleet.ready(dispatcher, consumer)
    slow = {"number": 1, "work_ms": 2_500 * lease_seconds}
    job_id = await site.submit([{"number": 0, "gated": True}, slow], chunk_size=1)

    async def both_began() -> bool:
        return len(site.ledger.marks("began")) == 2

    async def both_ended() -> bool:
        return len(site.ledger.marks("ended")) == 2

    await eventually(both_began, timeout_seconds=PATIENCE_SECONDS)

    async def hold(connection: AsyncConnection) -> None:
        await connection.execute(text("SELECT id FROM job FOR UPDATE"))
        site.ledger.open_gate()
        await eventually(both_ended, timeout_seconds=PATIENCE_SECONDS)

    await database.run(hold)
    await site.completed(job_id)
    assert not consumer.lines("lease.lost")
    assert not await site.witness.charges(job_id)
    assert site.ledger.runs() == {0: 1, 1: 1}
    site.fleet.none_failed()
