"""What SQS takes: of messages in a call, of attributes in a message, of hiding one, of receives."""

from __future__ import annotations

BATCH_LIMIT = 10
ATTRIBUTE_LIMIT = 10
# Counted from when a message was received.
HIDDEN_LIMIT_SECONDS = 43_200
# What is left to others must not come so often that SQS gives it up: at a thousand receives that
# takes days, not an hour.
_LEFT_CAP_SECONDS = 320
_LEFT_DOUBLINGS = 10


def left_seconds(seconds: int, receive_count: int) -> int:
    """Say how long a message is hidden that is left to others, and comes again and again."""
    doublings = min(max(receive_count - 1, 0), _LEFT_DOUBLINGS)
    return min(seconds << doublings, max(seconds, _LEFT_CAP_SECONDS))
