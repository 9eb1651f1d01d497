"""Ctrl-C and SIGTERM as something to ask for, never thrown into the middle of a step.

An exception out of a signal handler could strike between starting a process and writing down
its pid. So the handler only takes a note, and every wait of this package ends at once on it.
"""

import os
import select
import signal
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):
    """Somebody asked us to stop; what was started is still to be stopped by whoever catches it."""


class Interruption:
    """One request to stop, shared by all threads; without `listen` or `request` it never comes.

    A request to the one that it is a part of counts for it too, but not the other way round.
    """

    def __init__(self, part_of: "Interruption | None" = None) -> None:
        self._reader, self._writer = os.pipe()
        self.readers: tuple[int, ...] = (self._reader, *(part_of.readers if part_of else ()))
        self._requests = 0

    def close(self) -> None:
        """Gives back what it holds; for those that do not live as long as the process."""
        os.close(self._reader)
        os.close(self._writer)

    def listen(self) -> None:
        """From here on SIGINT, SIGTERM and SIGHUP are requests. Main thread only."""
        for number in _SIGNALS:
            signal.signal(number, self._note)

    def ignore(self) -> None:
        """From here on signals do nothing: for the last moments of a process. Main thread only."""
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    def request(self) -> None:
        """What a signal does; callable from any thread."""
        self._requests += 1
        # Never drained, so that every present and later wait sees it. Not threading.Event: its
        # lock may be held by the very wait that the signal handler runs in.
        if self._requests == 1:
            os.write(self._writer, b"!")

    def check(self) -> None:
        """Raises Interrupted once a request was made."""
        self.pause(0)

    def pause(self, seconds: float) -> None:
        """Waits; raises Interrupted as soon as a request is made."""
        if select.select(self.readers, [], [], seconds)[0]:
            raise Interrupted

    def _note(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self.request()
