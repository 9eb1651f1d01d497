"""How a command that prints ends, as the shell expects it."""

from __future__ import annotations

import os
import select
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_UNREAD = 128 + signal.SIGPIPE  # as a shell reports a process that the signal ended


def exit_code_of(main: Callable[[], int]) -> int | str | None:
    """Run a command for ``sys.exit``; where nobody reads on, as behind ``head``, it ends quietly.

    The signal itself stays ignored: it would end us for a database that hangs up, too.
    """
    if sys.stdout is None:  # closed by the shell
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - as long as the process lasts
    try:
        try:
            code: int | str | None = main()
        except SystemExit as ended:  # argparse's, after its help
            code = ended.code
        sys.stdout.flush()
    except BrokenPipeError:
        unread = _unread()
        if not unread:
            raise  # somebody else's pipe
        # The interpreter flushes once more as it ends.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for descriptor in unread:
            os.dup2(nowhere, descriptor)
        return _UNREAD
    return code


def _unread() -> list[int]:
    """Give those of standard output and error that nobody reads any more."""
    poller = select.poll()
    for stream in filter(None, (sys.stdout, sys.stderr)):
        # Not every system tells of an end to who asked for nothing.
        poller.register(stream, select.POLLOUT)
    gone = select.POLLERR | select.POLLHUP
    return [descriptor for descriptor, event in poller.poll(0) if event & gone]
