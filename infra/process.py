"""The life of a process: settings, logs, signals, one task group, an exit code.

SIGTERM and SIGINT set ``stop``: every loop ends its round and the process drains. A second
signal gives up on draining.
"""

from __future__ import annotations

import asyncio
import gc
import os
import secrets
import signal
import socket
import sys
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import asyncpg
import structlog
import uvloop

from infra.settings import Settings
from infra.telemetry.logs import configure_logging
from schema.errors import Misconfigured

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Serve = Callable[[Settings, str, asyncio.Event], Awaitable[None]]

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

EXIT_FAILED = 1
EXIT_BLOCKED = 70
EXIT_LEFT_BEHIND = 71
EXIT_MISCONFIGURED = 78
_LEFT_SECONDS = 5.0
_COLLECT_SECONDS = 60.0
_ROUNDS_TO_ALL = 60


def run(name: str, serve: Serve) -> int:
    """Run ``serve(settings, worker, stop)`` until it returns; give the exit code of the process.

    Tasks that go on even though they were cancelled are not waited for: then the process exits
    from here.
    """
    try:
        settings = Settings.from_environment(os.environ)
    except Misconfigured as error:
        sys.stderr.write(f"{name}: cannot start: {error}\n")
        return EXIT_MISCONFIGURED
    worker = worker_name()
    configure_logging(settings, process=name, worker=worker)
    try:
        return uvloop.run(_run(settings, worker, serve))
    except BaseException:  # as of ``sys.exit`` in some task, which ends the loop from inside
        log.exception("process.failed")
        return EXIT_FAILED


def exit_at_once(code: int) -> NoReturn:
    """End this process whatever its threads and tasks are doing, and whatever locks they hold."""
    os._exit(code)


async def _run(settings: Settings, worker: str, serve: Serve) -> int:
    code = await _code_of(settings, worker, serve)
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        with suppress(asyncio.CancelledError):  # a second signal: the wait is short anyway
            await asyncio.wait(left, timeout=_LEFT_SECONDS)
    left = {task for task in left if not task.done()}
    if left:
        # The end of the loop would wait for them without end.
        names = sorted(task.get_name() for task in left)
        log.error("process.left_tasks_behind", tasks=names[:10], many=len(names))
        exit_at_once(code or EXIT_LEFT_BEHIND)
    return code


async def _code_of(settings: Settings, worker: str, serve: Serve) -> int:
    try:
        await _serve(settings, worker, serve)
    except _Abandoned:
        log.warning("process.abandoned", remedy="the drain was cut short by a second signal")
        return EXIT_FAILED
    except (SystemExit, KeyboardInterrupt):  # they end the loop, too, and are told outside
        raise
    except asyncio.CancelledError:  # one of them ended the loop, in a task that nobody waits for
        log.exception("process.failed")
        return EXIT_FAILED
    except BaseException as error:  # the last line of defence: whatever ended the process is logged
        causes = _leaves(error)
        if all(isinstance(cause, Misconfigured) for cause in causes):
            message = "; ".join(map(str, causes))
            log.error("process.misconfigured", error=message)  # noqa: TRY400 - no traceback helps
            return EXIT_MISCONFIGURED
        log.exception("process.failed")
        return EXIT_FAILED
    return 0


def worker_name() -> str:
    """Name this process: readable, and never the name of an earlier one."""
    return f"{socket.gethostname()[:60]}:{os.getpid()}:{secrets.token_hex(3)}"


class _Abandoned(Exception):
    """The second signal."""


async def _serve(settings: Settings, worker: str, serve: Serve) -> None:
    stop, second = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    _collect_garbage_seldom(loop)
    main = asyncio.current_task()
    assert main is not None, "runs inside a task"

    def on_signal(name: str) -> None:
        if stop.is_set():
            second.set()
            main.cancel("second signal")
            return
        log.info("process.stopping", signal=name)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number.name)
    loop.set_exception_handler(_tell_unhandled)
    log.info("process.started", pid=os.getpid(), mode=settings.consumer_mode)
    try:
        await serve(settings, worker, stop)
    except asyncio.CancelledError:
        if second.is_set():
            raise _Abandoned from None
        raise
    log.info("process.stopped")


def _tell_unhandled(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Tell what nobody waited for, but for what the driver leaves behind when a session ends.

    Whoever used the session has had the error: a COPY has two futures of it, and waits for one.
    """
    future = context.get("future")
    is_left_behind = isinstance(future, asyncio.Future) and not isinstance(future, asyncio.Task)
    is_of_a_session = isinstance(context.get("exception"), asyncpg.ConnectionDoesNotExistError)
    if not (is_left_behind and is_of_a_session):
        loop.default_exception_handler(context)


def _collect_garbage_seldom(loop: asyncio.AbstractEventLoop) -> None:
    """Leave what the imports made out of every collection, and begin one less often.

    Thousands of inputs in hand look like garbage piling up: at Python's defaults the collector
    took more than half of a consumer's time. What we make is freed by reference counts; the
    collector is for the cycles of libraries.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 10)
    collect_garbage(loop, every_seconds=_COLLECT_SECONDS)


def collect_garbage(
    loop: asyncio.AbstractEventLoop, *, every_seconds: float, rounds: int = 1
) -> None:
    """Free the cycles among what is new now and then, and once in sixty rounds among all.

    A process with little to do makes so few that its memory would grow for an hour before the
    collector began by itself; and as the first generation never fills then, neither do others.
    """
    gc.collect(1 if rounds % _ROUNDS_TO_ALL else 2)
    again = partial(collect_garbage, loop, every_seconds=every_seconds, rounds=rounds + 1)
    loop.call_later(every_seconds, again)


def _leaves(group: BaseException) -> list[BaseException]:
    if isinstance(group, BaseExceptionGroup):
        return [leaf for member in group.exceptions for leaf in _leaves(member)]
    return [group]
