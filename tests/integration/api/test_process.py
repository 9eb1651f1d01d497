"""``python -m api`` as a process: it starts without Postgres, and stops when told."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from localstack.ports import free_port

AWAY = "postgresql://nobody@127.0.0.1:1/none"


@contextmanager
def served(database_url: str) -> Iterator[tuple[subprocess.Popen[bytes], httpx.Client]]:
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "api"],
        env={
            **os.environ,
            "DATABASE_URL": database_url,
            "CONSUMER_MODE": "outbox",
            "HAULAGE_API_PORT": str(port),
        },
        stderr=subprocess.DEVNULL,
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
