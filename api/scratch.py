"""Temporary files of submissions: one that cannot be written is a 503, and is told to operators."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING

import structlog

from api.problems import unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

# Room comes back when the submissions that are under way have ended.
_RETRY_AFTER_SECONDS = 30


@contextmanager
def scratching() -> Iterator[None]:
    """Turn whatever a temporary file cannot do inside the block into the answer that says so."""
    try:
        yield
    except OSError as error:
        log.error(  # noqa: TRY400 - the error says it all
            "submission.no_room",
            error=str(error),
            folder=tempfile.tempdir,
            remedy="make room in TMPDIR, or lower HAULAGE_MAX_CONCURRENT_SUBMISSIONS",
        )
        raise unavailable(
            "there is no room for a large submission now; nothing of it was stored",
            retry_after_seconds=_RETRY_AFTER_SECONDS,
        ) from error


def open_scratch() -> IO[bytes]:
    """Open a file that has no name, and so is gone once it is closed."""
    return tempfile.TemporaryFile()


def discard(file: IO[bytes]) -> None:
    """Close a file, whatever became of it: what it could not write is of no use any more."""
    with suppress(OSError):
        file.close()
