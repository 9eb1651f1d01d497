"""The rival: a bare loop over one indexed table, written as well as such a loop can be.

It claims 100 rows with SKIP LOCKED and completes them together, each in one statement on one
connection that it holds for itself, and decodes each body as a handler would. It has no
leases, no retries, no counters, no message queue.

``python -m tests.benchmarks.bare_loop URL MODE``: prints ``ready``. ``drain`` begins at a line of
input and ends when nothing is left; ``listen`` works whatever NOTIFY announces until its input
ends. ``sustain ROWS MOST`` inserts so many rows a statement on a second connection while
it drains, but none while more than ``MOST`` wait; each line of input is answered with how many were
inserted and how many are done, and the line ``stop`` ends the inserts.
"""

from __future__ import annotations

import asyncio
import json
import sys

import asyncpg
import uvloop

BATCH = 100
CHANNEL = "bare_work"
_POLL_SECONDS = 1.0

TABLE = """
CREATE TABLE bare_job (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    state text NOT NULL DEFAULT 'pending',
    body jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    claimed_at timestamptz,
    done_at timestamptz
);
CREATE INDEX bare_job_pending ON bare_job (id) WHERE state = 'pending';
"""
_CLAIM = """
WITH target AS MATERIALIZED (
    SELECT id FROM bare_job WHERE state = 'pending' ORDER BY id LIMIT $1
    FOR UPDATE SKIP LOCKED
)
UPDATE bare_job b SET state = 'running', claimed_at = now() FROM target WHERE b.id = target.id
RETURNING b.id, b.body
"""
_COMPLETE = """
UPDATE bare_job SET state = 'done', done_at = now()
WHERE id = ANY($1::bigint[]) AND state = 'running'
"""

# As cheap as an insert of many rows is: one statement, one parameter, one commit.
_INSERT = "INSERT INTO bare_job (body) SELECT * FROM jsonb_array_elements($1::jsonb)"
_BODY = {"n": 1, "text": "abcdefghijklmnopqrstuvwxyz0123456789"}
_PAUSE_SECONDS = 0.001


async def work(connection: asyncpg.Connection[asyncpg.Record]) -> int:
    """Claim and complete until nothing is left; give how many there were."""
    claim = await connection.prepare(_CLAIM)
    complete = await connection.prepare(_COMPLETE)
    done = 0
    while rows := await claim.fetch(BATCH):
        for row in rows:
            json.loads(row["body"])
        await complete.fetch([row["id"] for row in rows])
        done += len(rows)
    return done


class Sustained:
    """Inserts and drains side by side, in one process over two connections."""

    def __init__(self, url: str, *, rows: int, most: int) -> None:
        self._url = url
        self._rows = rows
        self._most = most
        self._inserted = self._done = 0
        self._is_over = False

    async def run(self) -> None:
        """Run until all that was inserted is done, and the last line of input was answered."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._insert())
            group.create_task(self._drain())
            group.create_task(self._tell())

    async def _insert(self) -> None:
        connection = await asyncpg.connect(self._url, server_settings={"jit": "off"})
        insert = await connection.prepare(_INSERT)
        bodies = json.dumps([_BODY] * self._rows)
        while not self._is_over:
            if self._inserted - self._done > self._most:
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            await insert.fetch(bodies)
            self._inserted += self._rows
        await connection.close()

    async def _drain(self) -> None:
        connection = await asyncpg.connect(self._url, server_settings={"jit": "off"})
        claim, complete = await connection.prepare(_CLAIM), await connection.prepare(_COMPLETE)
        while not self._is_over or self._done < self._inserted:
            rows = await claim.fetch(BATCH)
            if not rows:
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            for row in rows:
                json.loads(row["body"])
            await complete.fetch([row["id"] for row in rows])
            self._done += len(rows)
        await connection.close()

    async def _tell(self) -> None:
        loop = asyncio.get_running_loop()
        _say("ready")
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            self._is_over = self._is_over or line == "stop\n"
            _say(f"{self._inserted} {self._done}")
        self._is_over = True


async def main(url: str, mode: str, *numbers: str) -> None:
    """Work in the given mode."""
    if mode == "sustain":
        rows, most = map(int, numbers)
        await Sustained(url, rows=rows, most=most).run()
        return
    loop = asyncio.get_running_loop()
    connection = await asyncpg.connect(url, server_settings={"jit": "off"})
    await connection.prepare(_CLAIM)
    await connection.prepare(_COMPLETE)
    if mode == "drain":
        _say("ready")
        await loop.run_in_executor(None, sys.stdin.readline)
        _say(str(await work(connection)))
        # The session's costs are read before it ends.
        await loop.run_in_executor(None, sys.stdin.readline)
    else:
        heard = asyncio.Event()
        listener = await asyncpg.connect(url)
        await listener.add_listener(CHANNEL, lambda *_: heard.set())
        ended = loop.run_in_executor(None, sys.stdin.readline)
        _say("ready")
        while not ended.done():
            await work(connection)
            try:
                async with asyncio.timeout(_POLL_SECONDS):
                    await heard.wait()
            except TimeoutError:
                continue
            finally:
                heard.clear()
        await listener.close()
    await connection.close()


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
