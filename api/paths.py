"""What the path of a request names; what cannot be a name is not found, like what is not there."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from uuid import UUID

from api.problems import Problem, not_found
from infra.telemetry.logs import CORRELATION_ID

if TYPE_CHECKING:
    from starlette.requests import Request

    from api.exchange import Exchange

JOB_KEY = re.compile(r"J[0-9]{8}_[0-9]{6,19}")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}")
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_LARGEST_ORDINAL = 2**31 - 1
_LARGEST_ID = 2**63 - 1


def job_key(request: Request, exchange: Exchange) -> str:
    """Give the key of the job, and let the log have it."""
    key = str(request.path_params["jobId"])
    if not JOB_KEY.fullmatch(key):
        raise no_job()
    exchange.job = key
    return key


def ordinal(request: Request) -> int:
    """Give the ordinal of an input."""
    number = _number(request.path_params["ordinal"], _LARGEST_ORDINAL)
    if number is None:
        raise no_input()
    return number


def correlation_id(request: Request) -> str:
    """Give the correlation id; it may hold slashes."""
    text = str(request.path_params["correlationId"])
    if not CORRELATION_ID.fullmatch(text):
        raise no_correlation()
    return text


def row_id(request: Request, what: str) -> int:
    """Give the id of a parked thing."""
    number = _number(request.path_params["id"], _LARGEST_ID)
    if number is None:
        raise not_found(what)
    return number


def redrive_id(request: Request) -> UUID:
    """Give the id of a redrive."""
    text = str(request.path_params["redriveId"])
    if not _UUID.fullmatch(text):
        raise no_redrive()
    return UUID(text)


def base(request: Request) -> str:
    """Give what stands before the addresses of this server: nothing, or the prefix."""
    return str(request.scope.get("root_path", ""))


def no_job() -> Problem:
    """Make the 404 of a job; another owner's and none at all must look the same."""
    return not_found("there is no such job")


def no_input() -> Problem:
    """Make the 404 of an input."""
    return not_found("there is no such input")


def no_redrive() -> Problem:
    """Make the 404 of a redrive."""
    return not_found("there is no such redrive")


def no_correlation() -> Problem:
    """Make the 404 of a correlation id."""
    return not_found("there is no job of this correlation id")


def _number(text: str, largest: int) -> int | None:
    if not _NUMBER.fullmatch(text) or int(text) > largest:
        return None
    return int(text)
