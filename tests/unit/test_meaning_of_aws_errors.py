"""What an error of botocore means: passing, closed to us, or never to be had."""

import aiohttp
import pytest
from botocore import exceptions as boto

from infra.clients import meaning, speaking_plainly
from schema.errors import Fault, HaulageError, Refusal, Unavailable, Unusable

SECRET = "AKIAIOSFODNN7EXAMPLE"


def answer(
    code: str, status: int, operation: str = "SendMessage", said: str = f"token {SECRET} is bad"
) -> boto.ClientError:
    return boto.ClientError(
        {
            "Error": {"Code": code, "Message": said},
            "ResponseMetadata": {
                "HTTPStatusCode": status,
                "RequestId": "r-1",
                "HostId": "h",
                "HTTPHeaders": {},
                "RetryAttempts": 0,
            },
        },
        operation,
    )


@pytest.mark.parametrize(
    ("code", "status", "expected"),
    [
        ("ExpiredToken", 400, Unavailable),
        ("ExpiredTokenException", 403, Unavailable),
        ("RequestThrottled", 403, Unavailable),
        ("ThrottlingException", 400, Unavailable),
        ("SlowDown", 503, Unavailable),
        ("InternalError", 500, Unavailable),
        ("Odd", 502, Unavailable),
        ("Odd", 429, Unavailable),
        ("AccessDenied", 403, Unusable),
        ("AccessDeniedException", 400, Unusable),
        ("Odd", 403, Unusable),
        ("InvalidClientTokenId", 403, Unusable),
        ("NoSuchBucket", 404, Unusable),
        ("QueueDoesNotExist", 400, Unusable),
        ("AWS.SimpleQueueService.NonExistentQueue", 400, Unusable),
        ("InvalidMessageContents", 400, Refusal),
        ("AWS.SimpleQueueService.BatchRequestTooLong", 400, Refusal),
        ("EntityTooLarge", 400, Refusal),
        ("InvalidParameterValue", 400, Fault),
        ("UnsupportedOperation", 400, Fault),
        ("BadDigest", 400, Fault),
        ("Odd", 400, Fault),
    ],
)
def test_an_answer_means(code: str, status: int, expected: type[HaulageError]) -> None:
    error = meaning(answer(code, status, said=""), "queue")
    assert type(error) is expected
    assert str(error) == f"queue answered SendMessage: {code} ({status}, request r-1)"


@pytest.mark.parametrize("code", ["InvalidMessageContents", "InvalidParameterValue"])
def test_what_may_be_about_the_message_is_told_in_the_words_of_aws(code: str) -> None:
    said = "One or more parameters are invalid. See https://u:geheim@x"
    told = str(meaning(answer(code, 400, said=said), "queue"))
    assert told.startswith(f"queue answered SendMessage: {code} (400, request r-1): One or more")
    assert "geheim" not in told


@pytest.mark.parametrize("code", ["InvalidClientTokenId", "ExpiredToken", "AccessDenied"])
def test_what_is_about_credentials_is_told_without_them(code: str) -> None:
    assert SECRET not in str(meaning(answer(code, 403), "queue"))


def test_a_bucket_that_is_not_there_is_known_without_a_code() -> None:
    assert type(meaning(answer("404", 404, "HeadBucket"), "storage")) is Unusable


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (boto.EndpointConnectionError(endpoint_url=f"https://u:{SECRET}@x"), Unavailable),
        (boto.ReadTimeoutError(endpoint_url=f"https://u:{SECRET}@x"), Unavailable),
        (boto.ConnectTimeoutError(endpoint_url="https://x"), Unavailable),
        (boto.ConnectionClosedError(endpoint_url="https://x"), Unavailable),
        (boto.CredentialRetrievalError(provider="x", error_msg=SECRET), Unavailable),
        (boto.NoCredentialsError(), Unusable),
        (boto.ParamValidationError(report=SECRET), Fault),
        (aiohttp.ClientPayloadError(SECRET), Unavailable),
        (TimeoutError(SECRET), Unavailable),
        (ConnectionResetError(SECRET), Unavailable),
        (UnicodeDecodeError("utf-8", SECRET.encode(), 0, 1, SECRET), Unavailable),
        (AttributeError(SECRET), Unavailable),
        (KeyError(SECRET), Unavailable),
    ],
)
def test_no_answer_means(error: Exception, expected: type[HaulageError]) -> None:
    meant = meaning(error, "storage")
    assert type(meant) is expected
    assert SECRET not in str(meant)
    assert str(meant).startswith("storage")


def test_an_answer_that_cannot_be_read_is_told_apart_from_none() -> None:
    with pytest.raises(Unavailable, match=r"sqs is away: its answer cannot be read \(KeyError\)"):
        with speaking_plainly("sqs"):
            raise KeyError("Id")


def test_what_is_an_error_of_ours_already_stays_what_it_is() -> None:
    with pytest.raises(Refusal, match="ours"), speaking_plainly("sqs"):
        raise Refusal("ours")
