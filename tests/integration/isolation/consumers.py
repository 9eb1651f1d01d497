"""Real consumer processes that are expected to end in a way of their own."""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests import poison
from tests.platform import eventually

CHECKOUT = Path(__file__).resolve().parents[3]
_BRIEF = {
    "CONSUMER_MODE": "outbox",
    "HAULAGE_KINDS": "tests.poison:UNLIMITED,tests.poison:INSIDE",
    "HAULAGE_BUCKET": "unused",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "HAULAGE_LOG_FORMAT": "json",
    "HAULAGE_POLL_FLOOR_SECONDS": "0.2",
    "HAULAGE_RECEIVERS": "1",
    "HAULAGE_DATABASE_POOL_SIZE": "3",
}


@dataclass(frozen=True, slots=True)
class ConsumerProcess:
    process: Process
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def exit_code(self) -> int:
        async with asyncio.timeout(120):
            return await self.process.wait()

    def lines(self, event: str) -> list[dict[str, Any]]:
        whole = self.log.read_text().rpartition("\n")[0].splitlines()
        events = [json.loads(line) for line in whole if line.startswith("{")]
        return [line for line in events if line["event"] == event]


@asynccontextmanager
async def consumer_process(
    database_url: str, log: Path, **settings: object
) -> AsyncIterator[ConsumerProcess]:
    """Run ``python -m consumer`` inside the block; it is gone afterwards, however it went."""
    own = {f"HAULAGE_{name.upper()}": str(value) for name, value in settings.items()}
    environment = {
        **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
        **_BRIEF,
        **own,
        "DATABASE_URL": database_url,
    }
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "consumer",
            stdout=output, stderr=output, env=environment, cwd=CHECKOUT, start_new_session=True,
        )  # fmt: skip
    try:
        yield ConsumerProcess(process, log)
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
        await process.wait()


async def has_begun(consumer: ConsumerProcess, file: Path) -> tuple[int, int, int]:
    """Wait until an input has begun; give its ordinal, attempt and process."""

    async def begun() -> bool:
        assert consumer.process.returncode is None, consumer.log.read_text()[-2_000:]
        return bool(poison.marks(file))

    await eventually(begun, timeout_seconds=120, pause_seconds=0.02)
    return poison.marks(file)[0]


async def is_gone(pid: int) -> None:
    """Wait until a process has ended; one that nobody has collected has ended as well."""

    async def gone() -> bool:
        try:
            return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    await eventually(gone, timeout_seconds=30, pause_seconds=0.02)
