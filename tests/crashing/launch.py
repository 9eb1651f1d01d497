"""Starts a process that is to crash, forked from one that has imported all it needs."""

import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.context import ForkServerProcess
from pathlib import Path

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["tests.crashing.consumer", "tests.crashing.dispatcher"])


def _run(main: Callable[[], int], environment: Mapping[str, str], log: str) -> None:
    os.environ.clear()
    os.environ.update(environment)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(file, 2)
    raise SystemExit(main())


@contextmanager
def launched(
    main: Callable[[], int], environment: Mapping[str, str], log: Path
) -> Iterator[ForkServerProcess]:
    """Run ``main`` in a process with this environment alone; it is gone after the block."""
    process = _FORKS.Process(target=_run, args=(main, dict(environment), str(log)))
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()
        process.close()
