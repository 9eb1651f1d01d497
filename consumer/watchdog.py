"""Ends a process whose event loop is blocked: then nothing extends leases, and nobody answers.

A thread counts its own ticks during which the loop did not turn, so that a process that was
stopped as a whole and goes on is not taken for a blocked one. What blocks while it holds the
interpreter's lock (a regular expression, C code) keeps that thread from running as well: the
kernel ends the process when it used twice the limit of processor time since the last tick. Time
in which it was stopped does not count there either.
"""

from __future__ import annotations

import asyncio
import faulthandler
import signal
import sys
import threading
import traceback
from typing import TYPE_CHECKING

import structlog

from infra.process import EXIT_BLOCKED, exit_at_once

if TYPE_CHECKING:
    from collections.abc import Callable

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_TICKS = 10
_FRAMES = 30
_LOG_SECONDS = 2.0


class Watchdog:
    """Watches the loop in which ``run`` runs."""

    def __init__(
        self, *, limit_seconds: float, end_process: Callable[[int], object] = exit_at_once
    ) -> None:
        self._limit = limit_seconds
        self._tick = limit_seconds / _TICKS
        self._end_process = end_process
        self._turns = 0
        self._over = threading.Event()

    async def run(self) -> None:
        """Watch until cancelled."""
        thread = threading.Thread(
            target=self._watch, args=(threading.get_ident(),), name="watchdog", daemon=True
        )
        thread.start()
        try:
            while True:
                self._turns += 1
                await asyncio.sleep(self._tick / 2)
        finally:
            self._over.set()

    def _watch(self, watched: int) -> None:
        seen, ticks = self._turns, 0
        # Written in the signal's handler, without the interpreter; then the signal ends us.
        faulthandler.register(signal.SIGVTALRM, chain=True)
        while not self._over.wait(self._tick):
            signal.setitimer(signal.ITIMER_VIRTUAL, 2 * self._limit)
            seen, ticks = self._turns, (ticks + 1 if self._turns == seen else 0)
            if ticks >= _TICKS:
                # The blocked thread may hold a lock of the log's: not even that may stop us.
                telling = threading.Thread(target=self._tell, args=(watched,), daemon=True)
                telling.start()
                telling.join(_LOG_SECONDS)
                self._end_process(EXIT_BLOCKED)
                break
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        faulthandler.unregister(signal.SIGVTALRM)

    def _tell(self, watched: int) -> None:
        frame = sys._current_frames().get(watched)  # noqa: SLF001 - documented for debuggers
        log.critical(
            "loop.blocked",
            limit_seconds=self._limit,
            stack="".join(traceback.format_stack(frame)[-_FRAMES:]),
            remedy="give the kind isolation='process', or move the work into asyncio.to_thread",
        )
