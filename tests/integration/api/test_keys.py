import asyncio
import datetime as dt
import io
import os
import re
import subprocess
import sys

import httpx
import pytest
from sqlalchemy import text

from api import keys as command
from api.auth import CACHE_SECONDS, Keys, key_digest, new_key
from infra.database import Database
from tests.integration.api.conftest import AddKey, Api

_SOON = 1.5


def run(database_url: str, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "api.keys", *arguments],
        env={**os.environ, "DATABASE_URL": database_url},
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_create_prints_exactly_a_key_that_check_accepts(database_url: str) -> None:
    created = run(database_url, "create", "--owner", "acme", "--role", "admin", "--label", "t")
    assert created.returncode == 0
    assert re.fullmatch(r"hlg_[A-Za-z0-9_-]{43}\n", created.stdout)
    identity = run(database_url, "list").stdout.split("\t")[0]
    assert created.stderr == f"id {identity}\n"
    assert run(database_url, "check", stdin=created.stdout).returncode == 0
    assert run(database_url, "check", stdin=new_key()).returncode == 1
    assert run(database_url, "check", stdin="").returncode == 1


def test_list_shows_no_secret_and_revoke_ends_a_key(database_url: str) -> None:
    key = run(database_url, "create", "--owner", "acme", "--label", "CI of acme").stdout
    listed = run(database_url, "list").stdout
    assert "acme\towner\tvalid\texpires never\tCI of acme" in listed
    assert key.strip() not in listed
    identity = listed.split("\t")[0]
    assert run(database_url, "revoke", identity).returncode == 0
    assert run(database_url, "revoke", identity).returncode == 1
    assert run(database_url, "check", stdin=key).returncode == 1
    assert "revoked" in run(database_url, "list").stdout


@pytest.mark.parametrize("owner", ["", "no spaces", "x" * 65])
def test_a_name_that_cannot_be_an_owner_is_refused_in_words(database_url: str, owner: str) -> None:
    refused = run(database_url, "create", "--owner", owner, "--label", "t")
    assert refused.returncode == 2
    assert "an owner's name is 1 to 64 letters" in refused.stderr
    assert refused.stdout == ""


async def test_an_expired_key_is_listed_as_such(
    database: Database, database_url: str, add_key: AddKey
) -> None:
    await add_key(expires_at=dt.datetime(2020, 1, 1, tzinfo=dt.UTC))
    await add_key(owner="other", expires_at=dt.datetime(2096, 1, 1, tzinfo=dt.UTC))
    listed = await asyncio.to_thread(run, database_url, "list")
    first, second = listed.stdout.splitlines()
    assert "acme\towner\texpired\texpires 2020-01-01T00:00:00Z" in first
    assert "other\towner\tvalid\texpires 2096-01-01T00:00:00Z" in second


def test_a_key_that_would_never_be_valid_is_not_made(database_url: str) -> None:
    refused = run(
        database_url,
        *("create", "--owner", "acme", "--label", "t", "--expires-at", "2020-01-01T00:00:00Z"),
    )
    assert refused.returncode == 2
    assert "--expires-at is in the past" in refused.stderr
    assert (refused.stdout, run(database_url, "list").stdout) == ("", "")


def test_without_a_database_the_command_says_so() -> None:
    refused = run("postgresql://nobody@127.0.0.1:1/none", "list")
    assert refused.returncode == 2
    assert "database is away" in refused.stderr


async def test_only_the_digest_of_a_key_is_stored(database: Database, add_key: AddKey) -> None:
    key = await add_key()
    (row,) = await database.fetch(text("SELECT digest, api_key::text AS whole FROM api_key"))
    assert bytes(row.digest) == key_digest(key)
    assert key not in row.whole


UNKNOWN_KEY = "hlg_" + "k" * (len(new_key()) - len("hlg_"))


@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Bearer hlg_short", "Basic aGxn", f"Bearer {UNKNOWN_KEY}", "Bearer é",
     f"Bearer {UNKNOWN_KEY} x", "Bearer " + "x" * 10_000],
)  # fmt: skip
async def test_without_a_valid_key_every_job_address_is_a_401(
    api: Api, authorization: str | None
) -> None:
    headers = {} if authorization is None else {"Authorization": authorization.encode("latin-1")}
    transport = httpx.ASGITransport(api.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://haulage") as client:
        for address in ("/jobs", "/jobs/J20260110_000777", "/api/jobs/x/inputs"):
            response = await client.get(address, headers=headers)  # type: ignore[arg-type]
            assert response.status_code == 401
            assert response.headers["www-authenticate"].startswith('Bearer realm="haulage"')


async def test_a_key_that_expired_or_was_revoked_is_refused(
    database: Database, add_key: AddKey
) -> None:
    expired = await add_key(expires_at=dt.datetime(2020, 1, 1, tzinfo=dt.UTC))
    revoked, valid = await add_key(), await add_key()
    await database.fetch(
        text("UPDATE api_key SET revoked_at = now() WHERE digest = :digest").bindparams(
            digest=key_digest(revoked)
        )
    )
    keys = Keys(database)
    assert await keys.find(expired) is None
    assert await keys.find(revoked) is None
    caller = await keys.find(valid)
    assert caller is not None
    assert (caller.owner, caller.is_admin, caller.scope) == ("acme", False, caller.owner_id)


async def test_a_known_key_is_remembered_for_seconds_and_never_past_its_expiry(
    database: Database, add_key: AddKey
) -> None:
    now = 100.0
    keys = Keys(database, clock=lambda: now)
    lasting = await add_key()
    ending = await add_key(expires_at=dt.datetime.now(dt.UTC) + dt.timedelta(seconds=_SOON))
    assert await keys.find(lasting) is not None
    assert await keys.find(ending) is not None
    await database.fetch(text("UPDATE api_key SET revoked_at = now()"))
    now += _SOON
    assert await keys.find(lasting) is not None
    assert await keys.find(ending) is None
    now = 100.0 + CACHE_SECONDS
    assert await keys.find(lasting) is None


async def test_check_reads_one_line(
    database: Database, add_key: AddKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = await add_key()
    arguments = command._parser().parse_args(["check"])
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"  {key}\nmore\n"))
    assert await command.run(arguments, database) == 0
