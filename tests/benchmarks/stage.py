"""What a benchmark runs on: a durable cluster of its own, the SQS stub, and real processes."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
import urllib.error
import urllib.request
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import asyncpg

from infra.database import Database
from infra.migrate import migrate
from infra.settings import Settings
from localstack import aws as localstack_aws
from localstack import processes
from localstack.init.resources import BUCKET, Access
from localstack.interruption import Interruption
from localstack.ports import free_port
from localstack.postgres import Cluster, Postgres
from schema.ids import uuid7
from tests.benchmarks.meter import Meter

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from localstack.processes import Identity

CHECKOUT = Path(__file__).resolve().parents[2]
_NOOP = "tests.plugin_example.noop"
KINDS = f"{_NOOP}:NOOP,{_NOOP}:NOOP_MANY,{_NOOP}:NOOP_HUNDRED"
# Durable: what is committed survives a crash of the machine. Sizes keep checkpoints out of runs.
POSTGRES_OPTIONS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": "512MB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "30min",
}
_READY_SECONDS = 60.0
_STOP_SECONDS = 40.0


@dataclass
class Place:
    """A database of its own with one owner, a queue of its own, and the processes on them."""

    name: str
    url: str
    database: Database
    connection: asyncpg.Connection[asyncpg.Record]
    meter: Meter
    environment: dict[str, str]
    owner_id: UUID
    running: list[Identity] = field(default_factory=list)
    # Where its API processes answer, in the order of their start.
    api_urls: list[str] = field(default_factory=list)

    @property
    def pids(self) -> list[int]:
        """Give the pids of the processes that run here."""
        return [identity.pid for identity in self.running]

    def pids_of(self, module: str) -> list[int]:
        """Give the pids of those that run one of the project's processes."""
        return [one.pid for one in self.running if one.name.startswith(f"{self.name}-{module}-")]


class Stage:
    """Everything that is started for a run, and stopped with it."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="haulage-bench-", dir="/tmp"))
        self.interruption = Interruption()
        given = os.environ.get("HAULAGE_LOCAL_POSTGRES_BIN")
        self._postgres = Postgres(
            self.folder / "postgres",
            log=self.folder / "postgres.log",
            server_folder=Path(given) if given else None,
        )
        self._stack = AsyncExitStack()
        self._started: list[Identity] = []
        self._aws: tuple[Access, int] | None = None
        self.cluster: Cluster | None = None
        self.stub_url = ""
        self.stub_pid = 0
        self.postgres_version = ""

    async def __aenter__(self) -> Self:
        self.folder.chmod(0o755)
        main = asyncio.current_task()
        assert main is not None, "a stage is entered inside of a task"
        # Ctrl-C is asyncio's own; without this, SIGTERM would leave behind all that was started.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, main.cancel)
        try:
            self.cluster = self._postgres.start(
                interruption=self.interruption, max_connections=200, options=POSTGRES_OPTIONS
            )
            connection = await asyncpg.connect(self.cluster.url())
            await connection.execute("CREATE DATABASE template_bench")
            self.postgres_version = await connection.fetchval("SHOW server_version")
            await connection.close()
            await migrate(self.cluster.url("template_bench"))
            self._start_stub()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()
        processes.stop(self._started, grace_seconds=_STOP_SECONDS)
        self._postgres.remove()
        shutil.rmtree(self.folder, ignore_errors=True)

    def program(self, name: str) -> str | None:
        """Give the path of a PostgreSQL program that goes with the server, or of any other."""
        beside = Path(self._postgres.program(name))
        return str(beside) if beside.exists() else shutil.which(name)

    def _start_stub(self) -> None:
        port = free_port()
        self.stub_url = f"http://127.0.0.1:{port}"
        identity = self.start("stub", ["-m", "tests.stubs.sqs", "--port", str(port)], {})
        self.stub_pid = identity.pid
        processes.wait_until(
            lambda: port_answers(port),
            "The SQS stub was not ready",
            watching=[identity],
            interruption=self.interruption,
            timeout_seconds=_READY_SECONDS,
        )

    def aws(self) -> tuple[Access, int]:
        """Give LocalStack and its pid; it is started on first use."""
        if self._aws is None:
            port = free_port()
            identity = localstack_aws.start(
                localstack_aws.install(CHECKOUT, self.interruption),
                port=port,
                data=self.folder / "localstack",
                log=self.folder / "localstack.log",
                end_with_parent=True,
            )
            self._stack.callback(localstack_aws.stop, identity)
            url = localstack_aws.wait_ready(identity, self.interruption)
            self._aws = Access(url), identity.pid
        return self._aws

    async def place(self, name: str, *, mode: str, **settings: object) -> Place:
        """Make a database, and in SQS mode a queue, for one rival."""
        assert self.cluster is not None, "entered before"
        admin = await asyncpg.connect(self.cluster.url())
        await admin.execute(f"CREATE DATABASE {name} TEMPLATE template_bench")
        await admin.close()
        url = self.cluster.url(name)
        environment = {
            **{key: os.environ[key] for key in ("PATH", "HOME", "LANG") if key in os.environ},
            "DATABASE_URL": url,
            "CONSUMER_MODE": mode,
            "HAULAGE_KINDS": KINDS,
            "HAULAGE_LOG_FORMAT": "json",
            "HAULAGE_BUCKET": BUCKET,
            "AWS_ENDPOINT_URL": self.stub_url,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        if mode == "sqs-consumer":
            environment["HAULAGE_QUEUE_URL"] = self._queue(name)
        environment |= {f"HAULAGE_{key.upper()}": str(value) for key, value in settings.items()}
        own: Any = {
            "database_url": url,
            "consumer_mode": "outbox",
            "statement_timeout_seconds": 120,
        }
        database = await self._stack.enter_async_context(
            Database.from_settings(Settings.model_validate(own), name="benchmark")
        )
        connection = await asyncpg.connect(url)
        self._stack.push_async_callback(connection.close)
        owner_id = uuid7()
        await connection.execute("INSERT INTO owner (id, name) VALUES ($1, 'bench')", owner_id)
        meter = Meter(
            connection,
            postmaster=self.cluster.identity.pid,
            stub=self.stub_pid if mode == "sqs-consumer" else None,
        )
        return Place(name, url, database, connection, meter, environment, owner_id)

    def _queue(self, name: str) -> str:
        request = urllib.request.Request(  # noqa: S310 - our own stub
            self.stub_url,
            data=f'{{"QueueName":"{name}"}}'.encode(),
            headers={"X-Amz-Target": "AmazonSQS.CreateQueue"},
        )
        with opener().open(request, timeout=10) as answer:
            assert answer.status == HTTPStatus.OK
        return f"{self.stub_url}/000000000000/{name}"

    def run(self, place: Place, module: str, number: int = 1, **settings: object) -> Identity:
        """Start one of the project's processes on a place; return when it is ready."""
        port = free_port()
        field_name = "HAULAGE_API_PORT" if module == "api" else "HAULAGE_HEALTH_PORT"
        extra = {f"HAULAGE_{key.upper()}": str(value) for key, value in settings.items()}
        identity = self.start(
            f"{place.name}-{module}-{number}",
            ["-m", module],
            {**place.environment, field_name: str(port), **extra},
        )
        processes.wait_until(
            lambda: is_ready(f"http://127.0.0.1:{port}/readyz"),
            f"{module} was not ready",
            watching=[identity],
            interruption=self.interruption,
            timeout_seconds=_READY_SECONDS,
        )
        place.running.append(identity)
        place.environment.setdefault("HAULAGE_URL", f"http://127.0.0.1:{port}")
        if module == "api":
            place.api_urls.append(f"http://127.0.0.1:{port}")
        return identity

    def api_key(self, place: Place) -> str:
        """Make an API key of the place's owner."""
        command = [sys.executable, "-m", "api.keys", "create"]
        command += ["--owner", "bench", "--role", "owner", "--label", "benchmark"]
        return processes.run(
            "api.keys",
            command,
            environment=place.environment,
            folder=CHECKOUT,
            interruption=self.interruption,
        ).strip()

    def start(self, name: str, arguments: list[str], environment: Mapping[str, str]) -> Identity:
        """Start a Python process; it ends with the stage at the latest."""
        identity = processes.start(
            name,
            [sys.executable, *arguments],
            log=self.folder / f"{name}.log",
            environment=environment or {"PATH": os.environ.get("PATH", os.defpath)},
            folder=CHECKOUT,
        )
        self._started.append(identity)
        return identity

    def stop(self, place: Place) -> None:
        """Stop the processes of a place, so that they do not stand in the way of the next."""
        processes.stop(place.running, grace_seconds=_STOP_SECONDS)
        place.running.clear()
        place.api_urls.clear()


def opener() -> urllib.request.OpenerDirector:
    """Give an opener that knows of no proxy: a proxy cannot reach our loopback."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({}))


def is_ready(url: str) -> bool:
    """Say whether a process is ready, but for the storage that most benchmarks do without."""
    try:
        with opener().open(url, timeout=2) as answer:
            return bool(answer.status == HTTPStatus.OK)
    except urllib.error.HTTPError as error:
        checks: dict[str, str] = json.load(error).get("checks", {})
        return {name for name, outcome in checks.items() if outcome != "ok"} == {"storage"}
    except OSError:
        return False


def port_answers(port: int) -> bool:
    """Say whether something speaks HTTP there, whatever it says."""
    try:
        opener().open(f"http://127.0.0.1:{port}/", timeout=2)
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True
