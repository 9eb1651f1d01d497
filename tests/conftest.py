"""The real servers that tests share: each is started once per session, on first request."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from infra.database import Database
from localstack import aws as localstack_aws
from localstack.init.resources import Access
from localstack.interruption import Interruption
from localstack.ports import free_port
from localstack.postgres import DISPOSABLE, Cluster, Postgres
from tests.databases import Databases, execute
from tests.platform import Platform, settings_for

CHECKOUT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def server_folder() -> Path | None:
    """The PostgreSQL to test with, when the environment names one."""
    given = os.environ.get("HAULAGE_LOCAL_POSTGRES_BIN")
    return Path(given) if given else None


@pytest.fixture(scope="session")
def short_folder() -> Iterator[Path]:
    """A folder that a server run as another user can be in, with a path short enough for sockets.

    The folders of `tmp_path` are closed to other users.
    """
    folder = Path(tempfile.mkdtemp(prefix="haulage-test-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres(short_folder: Path, server_folder: Path | None) -> Iterator[Cluster]:
    """One running cluster, without the care for crashes that costs time."""
    server = Postgres(
        short_folder / "postgres",
        log=short_folder / "postgres.log",
        server_folder=server_folder,
    )
    yield server.start(interruption=Interruption(), max_connections=200, options=DISPOSABLE)
    server.remove()


@pytest.fixture(scope="session")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Access]:
    """One LocalStack with SQS, S3, CloudFormation and CloudWatch; it ends when pytest does."""
    interruption = Interruption()
    folder = tmp_path_factory.mktemp("localstack")
    port = free_port()
    identity = localstack_aws.start(
        localstack_aws.install(CHECKOUT, interruption),
        port=port,
        data=folder / "data",
        log=folder / "log",
        end_with_parent=True,
    )
    url = localstack_aws.wait_ready(identity, interruption)
    yield Access(url)
    localstack_aws.stop(identity)


@pytest.fixture(scope="session")
def databases(postgres: Cluster) -> Databases:
    """Migrated databases of that cluster."""
    return Databases(postgres)


@pytest.fixture
def database_url(databases: Databases) -> Iterator[str]:
    """A migrated, empty database that is the test's own."""
    with databases.lent() as url:
        yield url


@pytest.fixture
def empty_database_url(postgres: Cluster) -> Iterator[str]:
    """A database without our schema."""
    name = "empty_" + Path(postgres.socket_folder).name.replace("-", "_")[-8:].lower()
    asyncio.run(execute(postgres.url(), f'CREATE DATABASE "{name}"'))
    yield postgres.url(name)
    asyncio.run(execute(postgres.url(), f'DROP DATABASE "{name}" WITH (FORCE)'))


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    async with Database.from_settings(settings_for(database_url), name="test") as database:
        yield database


@pytest.fixture
async def platform(database: Database) -> Platform:
    platform = Platform(database)
    await platform.prepare()
    return platform
