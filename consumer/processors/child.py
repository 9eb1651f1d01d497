"""``python -m consumer.processors.child KIND PARENT MEMORY``: the process of one isolated kind.

Started by a consumer, with their socket as its standard input. It binds its life to the parent's
and its memory to the limit before it imports anything that takes time.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import resource
import signal
import sys
import threading
import traceback
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

EXIT_OUT_OF_MEMORY = 72
_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Serve the parent until it says to retire; a parent that is gone ends this process."""
    parent, memory_limit_bytes = int(arguments[1]), int(arguments[2])
    die_with(parent)
    limit_memory(memory_limit_bytes)
    leave_signals_to_parent()
    faulthandler.enable()
    channel = take_channel()

    from consumer.processors.serving import serve  # noqa: PLC0415 - takes a second: bound first

    try:
        serve(channel, memory_limit_bytes or None)
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except MemoryError:
        return EXIT_OUT_OF_MEMORY
    except BaseException:  # noqa: BLE001 - the last words go to the log of the parent
        traceback.print_exc()
        return 1
    return 0


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, where it can (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        end_group()  # it was gone before we asked


def limit_memory(limit_bytes: int) -> None:
    """Limit private memory, which is what grows; no core dump tells of secrets and fills disks.

    Address space would be the wrong measure: threads and allocators reserve far more than they
    use.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if limit_bytes:
        resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))


def leave_signals_to_parent() -> None:
    """Go on when a stop is sent to every process of a service: the parent drains, and then says so.

    A handler that does nothing, since what is ignored would be ignored by programs started here.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)


def take_channel() -> int:
    """Move the parent's socket away from standard input, out of the reach of what runs here."""
    channel = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return channel


def end_group() -> None:
    """Kill this process and what it started, unless the group is that of somebody else."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def listen(receive: Callable[[], bytes | None], hear: Callable[[bytes], object]) -> None:
    """Hand over what the parent says from a thread, which sees its end whatever the loop does."""

    def run() -> None:
        while (payload := receive()) is not None:
            hear(payload)
        end_group()

    threading.Thread(target=run, name="parent", daemon=True).start()


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads and tasks that the processor left behind must not keep this process.
    os._exit(code)
