"""The API as clients see it: the whole application over a database of its own."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from api.app import build_app
from api.auth import key_digest, new_key
from infra.database import Database
from infra.http import Health
from infra.wakeup import Notifier
from schema.export import EXPORT
from schema.ids import uuid7
from schema.kinds import JobInput, Kind
from schema.statements.keys import create_key
from tests.integration.api.working import Work
from tests.platform import Platform, settings_for

ABC = {"indexKey": "ABC", "effectiveDate": 20240202, "asofindicator": "CLS"}


class Note(JobInput):
    text: str


KINDS = {"export": EXPORT, "note": Kind("note", Note, "unused:unused")}
AddKey = Callable[..., Awaitable[str]]


def notes(many: int) -> dict[str, Any]:
    return {"kind": "note", "inputs": [{"text": f"note {number}"} for number in range(many)]}


@dataclass
class Api:
    """Opens clients of one application."""

    app: Any
    add_key: AddKey

    async def client(self, *, owner: str = "acme", role: str = "owner") -> httpx.AsyncClient:
        key = await self.add_key(owner=owner, role=role)
        return httpx.AsyncClient(
            transport=httpx.ASGITransport(self.app, raise_app_exceptions=True),
            base_url="http://haulage",
            headers={"Authorization": f"Bearer {key}"},
        )


@pytest.fixture
def add_key(database: Database) -> AddKey:
    async def add(*, owner: str = "acme", role: str = "owner", expires_at: Any = None) -> str:
        key = new_key()
        digest = key_digest(key)
        assert digest is not None
        await database.fetch(
            create_key(
                id=uuid7(),
                owner_id=uuid7(),
                owner=owner,
                role=role,
                digest=digest,
                label="test",
                expires_at=expires_at,
            )
        )
        return key

    return add


def application(
    database: Database, database_url: str, *, notifier: Notifier | None = None, **changes: Any
) -> Any:
    settings = settings_for(database_url, copy_from_inputs=50, data_content_limit=20, **changes)
    return build_app(
        settings,
        database=database,
        notifier=notifier or Notifier(database, enabled=False),
        kinds=KINDS,
        health=Health(90, checks={"database": database.ping}),
    )


@pytest.fixture
def api(database: Database, database_url: str, add_key: AddKey) -> Api:
    app = application(
        database, database_url, max_body_bytes=300_000, max_inputs=1_000, data_content_bytes=250_000
    )
    return Api(app, add_key)


@pytest.fixture
async def client(api: Api) -> AsyncIterator[httpx.AsyncClient]:
    async with await api.client() as client:
        yield client


@pytest.fixture
def work(database: Database) -> Work:
    return Work(database)


@pytest.fixture
def platform(database: Database) -> Platform:
    """The questions that tests ask of a database, without an owner of its own."""
    return Platform(database)
