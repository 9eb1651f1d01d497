"""What fails and can be expected to: said once, on stderr, and at once."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import asyncpg

from localstack.binaries import ServerNotFoundError
from localstack.client import ApiError
from localstack.environment import InstallError
from localstack.ports import PortTakenError
from localstack.processes import ProcessError
from localstack.settings import SettingsError

_EXPECTED = (
    ApiError,
    InstallError,
    PortTakenError,
    ProcessError,
    ServerNotFoundError,
    SettingsError,
    asyncpg.PostgresError,
)


class Told(Exception):
    """Something failed, and stderr says what."""


@contextmanager
def told_at_once() -> Iterator[None]:
    """What fails in the block is said before anything else goes on; then it is `Told`.

    Ending a stack takes up to a minute, and nobody should wait that long for the reason.
    """
    try:
        yield
    except _EXPECTED as error:
        print(f"\n{error}", file=sys.stderr, flush=True)
        raise Told from error
