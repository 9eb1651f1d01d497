"""``python -m tests.stubs.sqs --port N``: the stub as a process, until SIGTERM or SIGINT."""

from __future__ import annotations

import argparse
import asyncio
import gc
import signal
import sys

import uvloop

from tests.stubs.sqs.server import SqsStub


async def serve(port: int, queue_names: list[str]) -> None:
    """Serve until a signal comes; say where on the first line of output."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with SqsStub(port=port) as stub:
        for name in queue_names:
            stub.create_queue(name)
        sys.stdout.write(f"{stub.endpoint_url}\n")
        sys.stdout.flush()
        await stop.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.stubs.sqs")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--queue", action="append", default=[], help="create this queue")
    options = parser.parse_args()
    gc.freeze()
    uvloop.run(serve(options.port, options.queue))
