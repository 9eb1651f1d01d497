"""Starts a process that is to crash."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from tests.forking import fork


@contextmanager
def launched(
    main: Callable[[], int], environment: Mapping[str, str], log: Path
) -> Iterator[ForkServerProcess]:
    """Run ``main`` in a process with this environment alone; it is gone after the block."""
    process = fork(main, environment, log, log.parent)
    try:
        yield process
    finally:
        process.kill()
        process.join()
        process.close()
