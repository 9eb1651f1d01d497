"""Starts processes forked from one that has imported all that they need: a start costs little.

They share nothing but code with each other: environment, folder, output and session are their own.
"""

import multiprocessing
import os
import runpy
import sys
from collections.abc import Callable, Mapping
from multiprocessing.context import ForkServerProcess
from pathlib import Path

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    [
        "api.__main__",
        "consumer.__main__",
        "dispatcher.__main__",
        "tests.crashing.consumer",
        "tests.crashing.dispatcher",
        "tests.descriptions",
    ]
)


def fork(
    main: Callable[[], int], environment: Mapping[str, str], log: Path, folder: Path
) -> ForkServerProcess:
    """Run ``main`` in a process of its own; what it prints is appended to the log.

    The log is there at once: a process that is killed before it could open it wrote nothing.
    """
    log.touch()
    process = _FORKS.Process(target=_run, args=(main, dict(environment), str(log), str(folder)))
    process.start()
    return process


class Module:
    """What ``python -m name`` runs."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self) -> int:
        # Its imports are done; it itself is run anew, as a command is.
        sys.modules.pop(f"{self._name}.__main__", None)
        runpy.run_module(self._name, run_name="__main__")
        return 0


def _run(main: Callable[[], int], environment: Mapping[str, str], log: str, folder: str) -> None:
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    raise SystemExit(main())
