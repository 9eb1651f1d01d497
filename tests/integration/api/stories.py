"""Stories as clients and terminals get them."""

import os
import subprocess
import sys
from typing import Any

import httpx

from api import story as command
from infra.database import Database


async def timeline(client: httpx.AsyncClient, job: str, **query: Any) -> dict[str, Any]:
    response = await client.get(f"/jobs/{job}/timeline", params=query)
    assert response.status_code == 200, response.text
    document: dict[str, Any] = response.json()
    return document


def types(document: dict[str, Any]) -> list[str]:
    return [item["type"] for item in document["items"]]


def run(database_url: str, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "api.story", *arguments],
        env={**os.environ, "DATABASE_URL": database_url, **settings},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


async def told(
    database: Database, name: str, *, ordinal: int | None = None, by_relay: bool = False
) -> tuple[int, str]:
    said: list[str] = []
    code = await command.tell(database, name, ordinal=ordinal, by_relay=by_relay, say=said.append)
    return code, "".join(said)
