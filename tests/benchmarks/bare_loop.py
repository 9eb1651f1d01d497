"""The rival: a bare loop over one indexed table, written as well as such a loop can be.

It claims 100 rows with SKIP LOCKED and completes them together, each in one statement on one
connection that it holds for itself, and decodes each body as a handler would. It has no
leases, no retries, no counters, no message queue.

``python -m tests.benchmarks.bare_loop URL drain|listen``: prints ``ready``; ``drain`` begins at a
line of input and ends when nothing is left, ``listen`` works whatever NOTIFY announces until
its input ends.
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


async def main(url: str, mode: str) -> None:
    """Work in the given mode."""
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
    uvloop.run(main(sys.argv[1], sys.argv[2]))
