"""``python -m api.keys``: create, check, list and revoke API keys."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from typing import TYPE_CHECKING
from uuid import UUID

from pydantic_core import PydanticCustomError
from sqlalchemy import exc as sa_exc

from api.auth import Keys, key_digest, new_key
from api.models import read_time
from api.queries import OWNER
from infra.commands import exit_code_of
from infra.database import Database, first_line
from infra.settings import Settings
from schema.errors import Misconfigured, Unavailable
from schema.ids import uuid7
from schema.statements.keys import create_key, list_keys, revoke_key
from schema.statements.read import tell_past

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Sequence

_USAGE_ERROR = 2


def _time(text: str) -> dt.datetime:
    try:
        return read_time(text)
    except PydanticCustomError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _owner(text: str) -> str:
    if not OWNER.fullmatch(text):
        msg = "an owner's name is 1 to 64 letters, digits, dots, dashes or underscores"
        raise argparse.ArgumentTypeError(msg)
    return text


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m api.keys", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    create = commands.add_parser("create", help="print a new key, once; its id goes to stderr")
    create.add_argument(
        "--owner", type=_owner, required=True, help="who it belongs to; made if new"
    )
    create.add_argument("--role", choices=["owner", "admin"], default="owner")
    create.add_argument("--label", required=True, help="what the key is for")
    create.add_argument("--expires-at", type=_time, help="an RFC 3339 time")
    commands.add_parser("check", help="read a key from stdin; exit 0 if it is valid, else 1")
    commands.add_parser("list", help="list all keys")
    revoke = commands.add_parser("revoke", help="make a key invalid")
    revoke.add_argument("id", type=UUID)
    return parser


async def run(arguments: argparse.Namespace, database: Database) -> int:
    """Run one command; give the exit code."""
    match arguments.command:
        case "create":
            return await _create(arguments, database)
        case "check":
            if await Keys(database).find(sys.stdin.readline().strip()) is None:
                return 1
        case "list":
            for row in await database.fetch(list_keys()):
                ended = "expired" if row.expired else "valid"
                if row.revoked_at:
                    ended = f"revoked {row.revoked_at:%Y-%m-%dT%H:%M:%SZ}"
                expiry = f"{row.expires_at:%Y-%m-%dT%H:%M:%SZ}" if row.expires_at else "never"
                line = (str(row.id), row.owner, row.role, ended, f"expires {expiry}", row.label)
                sys.stdout.write("\t".join(line) + "\n")
        case "revoke":
            if not await database.fetch(revoke_key(arguments.id)):
                sys.stderr.write("api.keys: there is no such valid key\n")
                return 1
    return 0


async def _create(arguments: argparse.Namespace, database: Database) -> int:
    past = tell_past(scheduled_for=None, expires_at=arguments.expires_at)
    if any(row.expires_at for row in await database.fetch(past)):
        sys.stderr.write("api.keys: --expires-at is in the past: such a key would never be valid\n")
        return _USAGE_ERROR
    identity, key = uuid7(), new_key()
    digest = key_digest(key)
    assert digest is not None, "our own keys have the form of keys"
    await database.fetch(
        create_key(
            id=identity,
            owner_id=uuid7(),
            owner=arguments.owner,
            role=arguments.role,
            digest=digest,
            label=arguments.label,
            expires_at=arguments.expires_at,
        )
    )
    # Apart from each other: what is written to stdout is the key and nothing else.
    sys.stderr.write(f"id {identity}\n")
    sys.stdout.write(f"{key}\n")
    return 0


async def _main(arguments: argparse.Namespace, settings: Settings) -> int:
    async with Database.from_settings(settings, name="haulage keys") as database:
        return await run(arguments, database)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; give the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        # The mode needs a queue; keys do not.
        settings = Settings.from_environment({**os.environ, "CONSUMER_MODE": "outbox"})
        return asyncio.run(_main(arguments, settings))
    except (Misconfigured, Unavailable) as error:
        sys.stderr.write(f"api.keys: {error}\n")
    except sa_exc.DBAPIError as error:
        sys.stderr.write(f"api.keys: refused by the database: {first_line(error)}\n")
    return _USAGE_ERROR


if __name__ == "__main__":
    sys.exit(exit_code_of(main))
