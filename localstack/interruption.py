"""Ctrl-C and SIGTERM as something to ask for, never thrown into the middle of a step.

An exception out of a signal handler could strike between starting a process and writing down
its pid. So the handler only takes a note, and every wait of this package ends at once on it.
"""

import os
import select
import signal
from types import FrameType


class Interrupted(Exception):
    """Somebody asked us to stop; what was started is still to be stopped by whoever catches it."""


class Interruption:
    """One request to stop, shared by all threads; without `listen` it never comes."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        self.signals_seen = 0

    def listen(self) -> None:
        """From here on SIGINT, SIGTERM and SIGHUP are requests. Main thread only."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._note)

    def request(self) -> None:
        self.signals_seen += 1
        # Never drained, so that every present and later wait sees it. Not threading.Event: its
        # lock may be held by the very wait that the signal handler runs in.
        if self.signals_seen == 1:
            os.write(self._writer, b"!")

    def check(self) -> None:
        """Raises Interrupted once a request was made."""
        self.pause(0)

    def pause(self, seconds: float) -> None:
        """Waits; raises Interrupted as soon as a request is made."""
        if select.select([self._reader], [], [], seconds)[0]:
            raise Interrupted

    def _note(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self.request()
