"""Where and with what a benchmark ran: figures mean nothing without it."""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path

import psutil

from tests.benchmarks.stage import CHECKOUT, POSTGRES_OPTIONS

_LIBRARIES = ("asyncpg", "sqlalchemy", "uvloop", "uvicorn", "starlette", "aiobotocore", "botocore",
              "pydantic", "structlog", "httptools")  # fmt: skip
_GIB = 1024**3


def describe(postgres_version: str) -> dict[str, object]:
    """Give everything that a reader needs to run the same again."""
    return {
        "date": dt.datetime.now(tz=dt.UTC).isoformat(timespec="seconds"),
        "command": shlex.join([".venv/bin/python", *sys.orig_argv[1:]]),
        "commit": _git("rev-parse", "HEAD"),
        "uncommitted changes": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory GiB": round(psutil.virtual_memory().total / _GIB, 1),
        "load before the run": round(os.getloadavg()[0], 2),
        "Python": platform.python_version(),
        "PostgreSQL": postgres_version,
        "PostgreSQL settings": dict(POSTGRES_OPTIONS),
        "libraries": {name: importlib.metadata.version(name) for name in _LIBRARIES},
    }


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=CHECKOUT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
