"""Clients of AWS: one session a process, each client opened once and kept; and what errors mean.

Region, credentials and endpoint are botocore's own (``AWS_REGION``, ``AWS_ENDPOINT_URL``, roles,
profiles): nothing here copies a key, so that credentials that expire are renewed by botocore.
"""

from __future__ import annotations

import os
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import aioboto3
import aiobotocore
import aiohttp
import botocore.session
from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession
from botocore import exceptions as boto

from infra.aws_codes import meaning_of_code
from schema.errors import Fault, HaulageError, Misconfigured, Unavailable, Unusable
from schema.redaction import redact

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from types_aiobotocore_s3 import S3Client
    from types_aiobotocore_sqs import SQSClient

    from infra.settings import Settings

# How much of AWS's own words is kept.
_AWS_SAID = 300


class Clients:
    """Makes the clients of one process, all on one session.

    Open each once, when the process starts, and lend it: a client per call leaks memory.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        session = AioSession()
        session.register_component("data_loader", descriptions())
        self._session = aioboto3.Session(botocore_session=session)

    @asynccontextmanager
    async def sqs_receiving(self) -> AsyncIterator[SQSClient]:
        """Open a client for long polls alone, so that they never hold up a send or a delete.

        It tries once: the loop that polls has its own backoff.
        """
        async with self._opened("sqs", self._config(attempts=1)) as client:
            yield client

    @asynccontextmanager
    async def sqs(self) -> AsyncIterator[SQSClient]:
        """Open a client for everything but long polls."""
        async with self._opened("sqs", self._config()) as client:
            yield client

    @asynccontextmanager
    async def s3(self) -> AsyncIterator[S3Client]:
        """Open a client; it addresses buckets by path where an endpoint is set."""
        given = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        config = self._config(
            signature_version="s3v4",
            s3={"addressing_style": "path" if given else "auto"},
            # Every body of ours carries a CRC-32 of our own; another would be computed in vain.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        async with self._opened("s3", config) as client:
            yield client

    def _config(self, *, attempts: int | None = None, **more: Any) -> AioConfig:  # noqa: ANN401 - botocore's
        settings = self._settings
        return AioConfig(
            connect_timeout=settings.aws_connect_timeout_seconds,
            read_timeout=settings.aws_read_timeout_seconds,
            max_pool_connections=settings.aws_connections,
            retries={"total_max_attempts": attempts or settings.aws_attempts, "mode": "standard"},
            tcp_keepalive=True,
            # Our callers build their requests from checked values; this was a fifth of the cost.
            parameter_validation=False,
            # Botocore would put its own together anew for each call, a tenth of the call's cost.
            user_agent=f"haulage aiobotocore/{aiobotocore.__version__}",
            **more,
        )

    @asynccontextmanager
    async def _opened(self, service: Literal["sqs", "s3"], config: AioConfig) -> AsyncIterator[Any]:
        async with AsyncExitStack() as stack:
            try:
                client = await stack.enter_async_context(
                    self._session.client(service, region_name=_region(), config=config)
                )
            except (boto.BotoCoreError, ValueError) as error:
                raise _no_client(service, error) from error
            yield client


def check_environment() -> None:
    """Raise ``Misconfigured`` where no client could be made; it looks for no credentials."""
    session = botocore.session.Session()
    for service in ("sqs", "s3"):
        try:
            session.create_client(
                service,
                region_name=_region(),
                aws_access_key_id="none",
                aws_secret_access_key="none",  # noqa: S106
            )
        except (boto.BotoCoreError, ValueError) as error:
            raise _no_client(service, error) from error


def _region() -> str | None:
    """Give what all other SDKs read; botocore by itself knows ``AWS_DEFAULT_REGION`` only."""
    return os.environ.get("AWS_REGION") or None


def _no_client(service: str, error: Exception) -> Misconfigured:
    remedy = "set AWS_REGION, and AWS_ENDPOINT_URL to a URL or not at all"
    if isinstance(error, boto.ProfileNotFound):
        remedy = "AWS_PROFILE names no profile; an empty one names one, too: unset it"
    return Misconfigured(f"AWS: no {service} client ({type(error).__name__}): {remedy}")


@cache
def descriptions() -> object:
    """Give what reads the descriptions of services and keeps them: megabytes of JSON, once."""
    return AioSession().get_component("data_loader")


@contextmanager
def speaking_plainly(neighbour: str) -> Iterator[None]:
    """Turn whatever comes of a call into an error of ours.

    The block holds one call and the reading of its answer, nothing else. What is raised there and
    is none of ours is the neighbour's: botocore meets a page of some gateway with any error.
    """
    try:
        yield
    except HaulageError:
        raise
    except Exception as error:
        raise meaning(error, neighbour) from error


def meaning(error: Exception, neighbour: str) -> HaulageError:
    """Say what an error of a call, or of the reading of its answer, means to us.

    Its text names the call, the code and AWS's request id, never a key, a token or a URL.
    """
    if isinstance(error, boto.ClientError):
        return _meaning_of_answer(error, neighbour)
    name = type(error).__name__
    if isinstance(error, boto.NoCredentialsError | boto.PartialCredentialsError):
        return Unusable(f"{neighbour}: no AWS credentials found ({name})")
    if isinstance(error, boto.ParamValidationError | boto.ValidationError):
        # What an input says was checked before: it is a setting, such as the name of a bucket.
        return Fault(f"{neighbour}: the request is malformed ({name})")
    if isinstance(error, boto.BotoCoreError | aiohttp.ClientError | OSError):
        return Unavailable(f"{neighbour} is away: {name}")
    return Unavailable(f"{neighbour} is away: its answer cannot be read ({name})")


def _meaning_of_answer(error: boto.ClientError, neighbour: str) -> HaulageError:
    about: Any = error.response.get("ResponseMetadata", {})
    status = int(about.get("HTTPStatusCode") or 0)
    code = str(error.response.get("Error", {}).get("Code") or status)
    request = about.get("RequestId") or "none"
    text = f"{neighbour} answered {error.operation_name}: {code} ({status}, request {request})"
    means = meaning_of_code(code, status=status)
    if issubclass(means, Unavailable):
        return means(text)
    if error.operation_name == "HeadBucket":
        return Unusable(text)  # a HEAD has no body to hold a code
    # About what was sent, or perhaps so: AWS says what of it, and never a credential.
    said = redact(str(error.response.get("Error", {}).get("Message") or ""))
    return means(f"{text}: {said[:_AWS_SAID]}" if said else text)
