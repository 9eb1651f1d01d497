"""One URL, and everything connects with it alike: the pool, the listener, migrations, commands."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import quote
from uuid import uuid4

import pytest
from sqlalchemy import text

from infra.database import Database
from infra.wakeup import CHANNEL, Listener
from localstack.postgres import Cluster
from schema.errors import Unavailable
from tests.databases import execute
from tests.platform import eventually, settings_for
from tests.stubs.tls_server import CERTIFICATE, TlsServer

CHECKOUT = Path(__file__).resolve().parent.parent.parent.parent


@pytest.fixture
async def with_tls(postgres: Cluster) -> AsyncIterator[TlsServer]:
    """A server that takes TLS, in front of the one of all tests."""
    async with TlsServer(f"{postgres.socket_folder}/.s.PGSQL.{postgres.port}") as server:
        yield server


@pytest.fixture
def empty(postgres: Cluster) -> Iterator[str]:
    """The name of a database without a schema."""
    name = f"empty_{uuid4().hex[:12]}"
    asyncio.run(execute(postgres.url(), f"CREATE DATABASE {name}"))
    yield name
    asyncio.run(execute(postgres.url(), f"DROP DATABASE {name} WITH (FORCE)"))


async def connect_all(url: str) -> set[tuple[str, bool]]:
    """Connect the pool and the listener; give who is connected, and whether by TLS to Postgres."""
    settings = settings_for(url)
    async with Database.from_settings(settings, name="pool") as database:
        listener = Listener(settings, name="ear")
        wake = listener.wakes()
        running = asyncio.create_task(listener.run())
        async with asyncio.timeout(20):
            await wake.wait()
        await database.fetch(text("SELECT pg_notify(:channel, '')").bindparams(channel=CHANNEL))
        rows = await database.fetch(
            text(
                "SELECT application_name AS name, coalesce(ssl, false) AS ssl"
                " FROM pg_stat_activity LEFT JOIN pg_stat_ssl USING (pid)"
                " WHERE datname = current_database() AND backend_type = 'client backend'"
            )
        )
        running.cancel()
        await asyncio.wait([running])
    return {(row.name, row.ssl) for row in rows}


def name_of(database_url: str) -> str:
    return database_url.rpartition("/")[2].partition("?")[0]


def ran(module: str, url: str, *arguments: str) -> str:
    """Run a command with the URL in its environment."""
    ended = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env={"DATABASE_URL": url}, cwd=CHECKOUT, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.parametrize(
    ("query", "has_tls"),
    [
        ("sslmode=disable", False),
        ("sslmode=prefer", True),
        ("sslmode=require", True),
        ("sslmode=verify-full&sslrootcert={}&connect_timeout=5", True),
        ("sslmode=verify-ca&sslrootcert={}&target_session_attrs=read-write", True),
    ],
)
async def test_tls_is_what_the_url_says_for_whoever_connects(
    with_tls: TlsServer, database_url: str, query: str, *, has_tls: bool
) -> None:
    url = with_tls.url(name_of(database_url))
    await connect_all(f"{url}?{query.format(quote(str(CERTIFICATE), safe=''))}")
    assert with_tls.sessions == {("pool", has_tls), ("ear listener", has_tls)}


async def test_the_commands_take_the_same_urls(with_tls: TlsServer, empty: str) -> None:
    url = with_tls.url(empty)
    url += f"?sslmode=verify-full&sslrootcert={CERTIFICATE}&application_name=mine"
    await asyncio.to_thread(ran, "infra.migrate", url)
    create = ("create", "--owner", "o", "--label", "l")
    assert (await asyncio.to_thread(ran, "api.keys", url, *create)).startswith("hlg_")
    assert with_tls.sessions == {("mine", True)}


async def test_a_server_that_nobody_vouches_for_is_not_talked_to(
    with_tls: TlsServer, database_url: str
) -> None:
    """The certificate is for the address, not for this name of it."""
    url = with_tls.url(name_of(database_url), host="localhost")
    url += f"?sslmode=verify-full&sslrootcert={CERTIFICATE}"
    async with Database.from_settings(settings_for(url), name="pool") as database:
        with pytest.raises(Unavailable, match="certificate"):
            await database.ping()
    assert not with_tls.sessions


async def test_a_socket_a_name_and_options_reach_whoever_connects(
    postgres: Cluster, database_url: str
) -> None:
    url = postgres.socket_url(name_of(database_url))
    options = "&application_name=mine&options=-c%20search_path%3Dpg_catalog"
    assert await connect_all(url + options) == {("mine", False)}
    async with Database.from_settings(settings_for(url + options), name="x") as database:
        assert (await database.fetch(text("SHOW search_path")))[0][0] == "pg_catalog"
    assert await asyncio.to_thread(ran, "api.keys", url, "list") == ""


@pytest.mark.parametrize("module", ["infra.migrate", "api.keys", "dispatcher"])
async def test_a_parameter_that_is_not_understood_stops_the_process_and_is_named(
    module: str,
) -> None:
    arguments = ["list"] if module == "api.keys" else []
    ended = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", module, *arguments],
        env={"DATABASE_URL": "postgresql://u:geheim@h/n?sslmod=require", "CONSUMER_MODE": "outbox"},
        cwd=CHECKOUT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode in {2, 78}, ended.stderr
    assert "sslmod" in ended.stderr
    assert "geheim" not in ended.stderr
    assert "Traceback" not in ended.stderr


async def test_a_listener_hears_again_after_the_server_restarted_it(
    with_tls: TlsServer, database_url: str
) -> None:
    settings = settings_for(with_tls.url(name_of(database_url)) + "?sslmode=require")
    async with Database.from_settings(settings, name="pool") as database:
        listener = Listener(settings, name="ear")
        wake = listener.wakes()
        running = asyncio.create_task(listener.run())
        async with asyncio.timeout(20):
            await wake.wait()
        wake.clear()
        end = text(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'ear listener' AND datname = current_database()"
        )

        async def ended() -> bool:
            return bool(await database.fetch(end))

        await eventually(ended)
        async with asyncio.timeout(30):
            await wake.wait()
        running.cancel()
        await asyncio.wait([running])
