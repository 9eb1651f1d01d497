"""What the codes of AWS's errors mean: one table for whole calls and for entries of a batch."""

from __future__ import annotations

from schema.errors import Fault, Refusal, Unavailable, Unusable

# What passes by itself, whatever the HTTP status.
_PASSING = frozenset({
    "ExpiredToken", "ExpiredTokenException", "RequestExpired", "RequestTimeTooSkewed",
    "TokenRefreshRequired", "RequestTimeout", "InternalError", "InternalFailure",
    "ServiceUnavailable", "SlowDown", "Throttling", "ThrottlingException", "ThrottledException",
    "RequestThrottled", "RequestThrottledException", "RequestLimitExceeded", "OverLimit",
    "TooManyRequestsException", "BandwidthLimitExceeded", "KmsThrottled",
    "KMS.ThrottlingException", "OperationAborted",
})  # fmt: skip
# What lasts until somebody creates, grants or corrects something.
_CLOSED = frozenset({
    "NoSuchBucket", "InvalidBucketName", "QueueDoesNotExist",
    "AWS.SimpleQueueService.NonExistentQueue",
    "QueueDeletedRecently", "AWS.SimpleQueueService.QueueDeletedRecently", "InvalidAddress",
    "AccessDenied", "AccessDeniedException", "AllAccessDisabled", "AccountProblem",
    "InvalidAccessKeyId", "InvalidClientTokenId", "UnrecognizedClientException",
    "SignatureDoesNotMatch", "AuthorizationHeaderMalformed", "AuthFailure", "OptInRequired",
    "PermanentRedirect", "KmsAccessDenied", "KMS.AccessDeniedException", "KmsDisabled",
    "KMS.DisabledException", "KmsInvalidState", "KMS.InvalidStateException", "KmsNotFound",
    "KMS.NotFoundException", "KmsOptInRequired", "KmsInvalidKeyUsage",
})  # fmt: skip
# What is about the very message or object, and comes back whenever it is sent. A code that may
# be about the queue as well is not among them: `InvalidParameterValue` is said of both.
_OF_WHAT_WAS_SENT = frozenset({
    "InvalidMessageContents", "MessageTooLong", "BatchRequestTooLong", "EntityTooLarge",
    "AWS.SimpleQueueService.BatchRequestTooLong", "KeyTooLongError", "MetadataTooLarge",
})  # fmt: skip
_FORBIDDEN = 403
_SERVER_FAULT = 500
_TOO_MANY_REQUESTS = 429


def meaning_of_code(
    code: str, *, status: int = 0
) -> type[Unavailable | Unusable | Refusal | Fault]:
    """Say what a code means, with the HTTP status where there is one.

    ``Refusal``: it is about what was sent. ``Fault``: it may be about that, or about the neighbour.
    """
    if code in _PASSING or status >= _SERVER_FAULT or status == _TOO_MANY_REQUESTS:
        return Unavailable
    if code in _CLOSED or status == _FORBIDDEN:
        return Unusable
    return Refusal if code in _OF_WHAT_WAS_SENT else Fault
