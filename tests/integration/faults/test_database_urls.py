"""One URL, and everything connects with it alike: the pool, the listener, migrations, commands."""

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from sqlalchemy import text

from infra.database import Database
from infra.wakeup import CHANNEL, Listener
from localstack import binaries
from localstack.interruption import Interruption
from localstack.postgres import DISPOSABLE, Cluster, Postgres
from localstack.processes import ProcessError
from schema.errors import Unavailable
from tests.platform import eventually, settings_for

CHECKOUT = Path(__file__).resolve().parent.parent.parent.parent
CERTIFICATE = (
    "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    " -addext subjectAltName=IP:127.0.0.1"
)


@pytest.fixture(scope="module")
def with_tls(short_folder: Path, server_folder: Path | None) -> Iterator[tuple[Cluster, Path]]:
    """A cluster that takes TLS, and the certificate that vouches for it."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl to make a certificate with")
    certificate, key = short_folder / "server.crt", short_folder / "server.key"
    subprocess.run(
        [openssl, *CERTIFICATE.split(), "-keyout", str(key), "-out", str(certificate)],
        check=True,
        capture_output=True,
    )
    key.chmod(0o600)
    account = binaries.server_account()
    if account is not None:
        os.chown(key, account.user_id, account.group_id)
    options = {"ssl": "on", "ssl_cert_file": str(certificate), "ssl_key_file": str(key)}
    # The server that comes with the tests is built without TLS; one of the system may have it.
    for number, bin_folder in enumerate(
        [server_folder, *Path("/usr/lib/postgresql").glob("*/bin")]
    ):
        server = Postgres(
            short_folder / f"tls{number}", log=short_folder / "tls.log", server_folder=bin_folder
        )
        try:
            cluster = server.start(interruption=Interruption(), options=DISPOSABLE | options)
        except ProcessError:
            server.remove()
            continue
        yield cluster, certificate
        server.remove()
        return
    pytest.skip("no PostgreSQL here is built with TLS")


async def sessions(url: str) -> set[tuple[str, bool]]:
    """Connect the pool and the listener; give who is connected, and whether by TLS."""
    settings = settings_for(url)
    async with Database.from_settings(settings, name="pool") as database:
        listener = Listener(settings, name="ear")
        running = asyncio.create_task(listener.run())
        await listener.wait(20, asyncio.Event())
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
    with_tls: tuple[Cluster, Path], query: str, *, has_tls: bool
) -> None:
    cluster, certificate = with_tls
    url = f"{cluster.url()}?{query.format(quote(str(certificate), safe=''))}"
    assert await sessions(url) == {("pool", has_tls), ("ear listener", has_tls)}


async def test_the_commands_take_the_same_urls(with_tls: tuple[Cluster, Path]) -> None:
    cluster, certificate = with_tls
    url = f"{cluster.url()}?sslmode=verify-full&sslrootcert={certificate}&application_name=mine"
    await asyncio.to_thread(ran, "infra.migrate", url)
    create = ("create", "--owner", "o", "--label", "l")
    assert (await asyncio.to_thread(ran, "api.keys", url, *create)).startswith("hlg_")


async def test_a_server_that_nobody_vouches_for_is_not_talked_to(
    with_tls: tuple[Cluster, Path], tmp_path: Path
) -> None:
    cluster, certificate = with_tls
    url = cluster.url().replace("127.0.0.1", "127.0.0.2")
    url += f"?sslmode=verify-full&sslrootcert={certificate}"
    async with Database.from_settings(settings_for(url), name="pool") as database:
        with pytest.raises(Unavailable):
            await database.ping()


async def test_a_socket_a_name_and_options_reach_whoever_connects(
    postgres: Cluster, database_url: str
) -> None:
    name = database_url.rpartition("/")[2]
    url = postgres.socket_url(name)
    options = "&application_name=mine&options=-c%20search_path%3Dpg_catalog"
    assert await sessions(url + options) == {("mine", False)}
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
    with_tls: tuple[Cluster, Path],
) -> None:
    cluster, _ = with_tls
    settings = settings_for(cluster.url() + "?sslmode=require")
    async with Database.from_settings(settings, name="pool") as database:
        listener = Listener(settings, name="ear")
        running = asyncio.create_task(listener.run())
        await listener.wait(20, asyncio.Event())
        end = text(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'ear listener'"
        )

        async def ended() -> bool:
            return bool(await database.fetch(end))

        await eventually(ended)
        async with asyncio.timeout(30):
            await listener.wait(30, asyncio.Event())
        running.cancel()
        await asyncio.wait([running])
