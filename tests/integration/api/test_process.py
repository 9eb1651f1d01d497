"""``python -m api`` as a process: it starts without Postgres, and stops when told."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import asyncpg
import httpx
from sqlalchemy import text

from infra.database import Database
from localstack.ports import free_port
from tests.integration.api.conftest import ABC, AddKey
from tests.platform import Platform
from tests.steps import open_unit, until_waiting_for_a_lock

AWAY = "postgresql://nobody@127.0.0.1:1/none"


@contextmanager
def served(
    database_url: str, *, logs: int = subprocess.DEVNULL, **settings: str
) -> Iterator[tuple[subprocess.Popen[bytes], httpx.Client]]:
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "api"],
        env={
            **os.environ,
            "DATABASE_URL": database_url,
            "CONSUMER_MODE": "outbox",
            "HAULAGE_API_PORT": str(port),
            "HAULAGE_LOG_FORMAT": "json",
            **settings,
        },
        stderr=logs,
    )
    try:
        # Refused connections are tried again until the process listens.
        transport = httpx.HTTPTransport(retries=8)
        with httpx.Client(
            transport=transport, base_url=f"http://127.0.0.1:{port}", timeout=30
        ) as client:
            yield process, client
    finally:
        process.kill()
        process.wait(10)


def test_it_serves_while_postgres_is_away_and_says_that_it_is_not_ready() -> None:
    with served(AWAY) as (process, client):
        assert client.get("/livez").status_code == 200
        report = client.get("/readyz")
        assert report.status_code == 503
        assert report.json()["status"] == "not ready"
        assert "database is away" in report.json()["checks"]["database"]
        assert client.get("/docs").status_code == 200
        assert process.poll() is None


def test_it_is_ready_on_a_migrated_database_and_ends_in_time_when_told(database_url: str) -> None:
    with served(database_url) as (process, client):
        report = client.get("/readyz")
        assert report.json() == {
            "status": "ready",
            "checks": {"database": "ok", "migrations": "ok"},
        }
        head = client.head("/readyz")
        assert (head.status_code, head.content) == (200, b"")
        told = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0
        assert time.monotonic() - told < 12


def test_told_to_stop_it_says_so_and_serves_on_until_it_is_routed_past(database_url: str) -> None:
    with served(database_url, HAULAGE_API_DRAIN_DELAY_SECONDS="3") as (process, client):
        assert client.get("/readyz").json()["status"] == "ready"
        process.send_signal(signal.SIGTERM)
        while (report := client.get("/readyz")).json()["status"] == "ready":
            pass
        assert (report.status_code, report.json()["status"]) == (503, "draining")
        # On a connection of its own: it is still accepted.
        with httpx.Client(base_url=client.base_url) as other:
            assert other.get("/livez").status_code == 200
        assert process.wait(10) == 0


_SAME_KEY = """
INSERT INTO job (id, key, owner_id, kind, status, max_attempts, request_date, total,
                 correlation_id, idempotency_key, request_digest)
SELECT gen_random_uuid(), 'J20260101_999999', j.owner_id, j.kind, 'SUBMITTED', 3, j.request_date, 1,
       'c', 'k', ''
FROM job j JOIN owner o ON o.id = j.owner_id WHERE o.name <> 'other'
"""


async def test_a_row_in_other_hands_costs_nobody_else_an_answer(
    database_url: str, database: Database, platform: Platform, add_key: AddKey
) -> None:
    """Each request for the job kept a connection for half a minute, until there was none left."""
    key, other = await add_key(), await add_key(owner="other")
    with served(database_url, HAULAGE_DATABASE_POOL_SIZE="4") as (_, probe):
        probe.get("/livez")
        async with httpx.AsyncClient(base_url=probe.base_url, timeout=30) as client:
            mine, others = ({"Authorization": f"Bearer {it}"} for it in (key, other))
            inputs = {"inputs": [ABC]}
            job = (await client.post("/jobs", json=inputs, headers=mine)).json()["jobId"]
            async with open_unit(database) as unit:
                await unit.execute(text("SELECT FROM job FOR UPDATE"))
                asked = [
                    asyncio.create_task(client.post(f"/jobs/{job}/pause", headers=mine))
                    for _ in range(8)
                ]
                await until_waiting_for_a_lock(platform)
                answer = await client.post("/jobs", json=inputs, headers=others)
                assert answer.status_code == 202
                refused = [await one for one in asked]
            assert {one.status_code for one in refused} == {503}
            assert {"in other hands" in one.json()["detail"] for one in refused} == {True}
            answer = await client.post(f"/jobs/{job}/pause", headers=mine)
            assert answer.json()["status"] == "PAUSED"
            holder = await asyncpg.connect(database_url)
            earlier = holder.transaction()
            await earlier.start()
            await holder.execute("SELECT FROM owner FOR UPDATE")
            await holder.execute("SELECT FROM job FOR UPDATE")
            await holder.execute(_SAME_KEY)
            # It has to wait for the request that used its key before.
            with_key = asyncio.create_task(
                client.post("/jobs", json=inputs, headers=mine | {"Idempotency-Key": "k"})
            )
            await until_waiting_for_a_lock(platform)
            assert (await client.post("/jobs", json=inputs, headers=mine)).status_code == 202
            answer = await client.post(f"/jobs/{job}/resume", headers=mine)
            assert answer.status_code == 503
            assert not with_key.done()
            await earlier.rollback()
            await holder.close()
            assert (await with_key).status_code == 202


def test_a_second_signal_waits_for_nobody(database_url: str) -> None:
    with served(database_url, HAULAGE_API_DRAIN_DELAY_SECONDS="300") as (process, client):
        assert client.get("/livez").status_code == 200
        process.send_signal(signal.SIGTERM)
        while client.get("/readyz").json()["status"] != "draining":
            pass
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 1


def test_every_line_of_its_life_is_an_event_of_ours() -> None:
    with served(AWAY, logs=subprocess.PIPE) as (process, client):
        assert client.get("/livez").status_code == 200
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket"}
        assert client.get("/livez", headers=upgrade).status_code == 200
        with socket.create_connection(("127.0.0.1", client.base_url.port or 0), 10) as garbage:
            garbage.sendall(b"\x16\x03\x01 no HTTP\r\n\r\n")
            assert garbage.recv(1_024).startswith(b"HTTP/1.1 400 ")
        process.send_signal(signal.SIGTERM)
        _, written = process.communicate(timeout=15)
    events = [json.loads(line)["event"] for line in written.splitlines()]
    assert {"process.started", "http.listening", "process.stopped"} <= set(events)
    assert [event for event in events if not re.fullmatch(r"[a-z]+\.[a-z_]+", event)] == []
