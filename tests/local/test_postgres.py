"""The supervisor of the cluster, over every server that this machine has."""

import asyncio
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import psutil
import pytest

from localstack import processes
from localstack.binaries import ServerNotFoundError, find_server, system_servers
from localstack.interruption import Interrupted, Interruption
from localstack.postgres import DISPOSABLE, Cluster, Postgres
from localstack.processes import ProcessError

SERVER_FOLDERS = [
    pytest.param(None, id="wheel"),
    *(pytest.param(server.folder, id=f"system-{server.major}") for server in system_servers()),
]


def answer(url: str, query: str) -> object:
    async def ask() -> object:
        connection = await asyncpg.connect(url)
        try:
            return await connection.fetchval(query)
        finally:
            await connection.close()

    return asyncio.run(ask())


def start(server: Postgres) -> Cluster:
    return server.start(interruption=Interruption(), options=DISPOSABLE)


def kill(cluster: Cluster) -> None:
    cluster.identity.send(signal.SIGKILL)
    processes.stop([cluster.identity], grace_seconds=10)


@pytest.fixture
def place() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="haulage-test-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=SERVER_FOLDERS)
def server(request: pytest.FixtureRequest, place: Path) -> Iterator[Postgres]:
    server = Postgres(place / "home", log=place / "log", server_folder=request.param)
    yield server
    server.remove()


def test_a_new_folder_becomes_a_cluster_that_keeps_its_data(server: Postgres) -> None:
    cluster = start(server)
    answer(cluster.url(), "CREATE TABLE kept AS SELECT 42 AS answer")
    assert server.stop()
    assert server.running() is None

    again = start(server)
    assert answer(again.socket_url(), "SELECT answer FROM kept") == 42
    assert not server_listens_beyond_loopback(again)


def server_listens_beyond_loopback(cluster: Cluster) -> bool:
    connections = psutil.Process(cluster.identity.pid).net_connections(kind="inet")
    return any(connection.laddr.ip != "127.0.0.1" for connection in connections)


def test_tcp_asks_for_the_password_and_the_socket_folder_is_closed(
    server: Postgres,
) -> None:
    cluster = start(server)
    wrong = cluster.url().replace(cluster.password, "wrong")
    with pytest.raises(asyncpg.InvalidPasswordError):
        answer(wrong, "SELECT 1")
    assert Path(cluster.socket_folder).stat().st_mode & 0o077 == 0


def test_a_running_cluster_is_adopted(server: Postgres, place: Path) -> None:
    first = start(server)
    other = Postgres(place / "home", log=place / "log")
    second = start(other)
    assert second.was_adopted
    assert (second.identity.pid, second.port) == (first.identity.pid, first.port)
    assert answer(second.url(), "SELECT 1") == 1
    assert other.stop()
    assert not server.stop()


def test_it_starts_again_after_kill_9(server: Postgres) -> None:
    first = start(server)
    answer(first.url(), "CREATE TABLE kept AS SELECT 42 AS answer")
    kill(first)
    second = start(server)
    assert not second.was_adopted
    assert answer(second.url(), "SELECT answer FROM kept") == 42


def test_a_pid_file_that_names_a_stranger_is_stale(server: Postgres, place: Path) -> None:
    """As after a restart of the machine, when the pid belongs to somebody else."""
    first = start(server)
    kill(first)
    pid_file = place / "home" / "data" / "postmaster.pid"
    lines = pid_file.read_text().splitlines()
    pid_file.write_text("\n".join([str(psutil.Process().pid), *lines[1:]]) + "\n")
    assert server.running() is None
    assert not server.stop()
    assert not start(server).was_adopted


def test_an_interrupted_initdb_leaves_no_cluster_behind(server: Postgres) -> None:
    interruption = Interruption()
    interruption.request()
    with pytest.raises(Interrupted):
        server.start(interruption=interruption)
    assert server.running() is None
    assert answer(start(server).url(), "SELECT 1") == 1


def test_a_server_that_cannot_start_says_why(server: Postgres) -> None:
    with pytest.raises(ProcessError, match="no_such_setting"):
        server.start(interruption=Interruption(), options={"no_such_setting": "1"})


def test_a_deep_folder_still_gets_a_socket(place: Path) -> None:
    deep = place / ("d" * 60) / ("e" * 60)
    server = Postgres(deep, log=place / "log")
    try:
        cluster = start(server)
        assert answer(cluster.socket_url(), "SELECT 1") == 1
    finally:
        server.remove()
    assert not Path(cluster.socket_folder).exists()


def test_a_closed_folder_does_not_keep_a_server_out(place: Path) -> None:
    """As for root, whose server runs as somebody else, with a checkout under /root."""
    closed = place / "closed"
    closed.mkdir(mode=0o700)
    server = Postgres(closed / "home", log=place / "log")
    try:
        assert answer(start(server).url(), "SELECT 1") == 1
    finally:
        server.remove()
    assert list(closed.iterdir()) == []


def test_data_of_another_major_version_name_the_remedy(place: Path) -> None:
    home = place / "home"
    (home / "data").mkdir(parents=True)
    (home / "data" / "PG_VERSION").write_text("12\n")
    with pytest.raises(ServerNotFoundError, match=r"PostgreSQL 12.*make reset"):
        start(Postgres(home, log=place / "log"))


def test_data_of_an_older_release_find_their_server() -> None:
    assert find_server(None, 16).major == 16
    assert find_server(None, None).major == 18


def test_a_given_folder_without_a_server_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ServerNotFoundError, match="HAULAGE_LOCAL_POSTGRES_BIN"):
        find_server(tmp_path, None)
