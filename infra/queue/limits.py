"""What SQS takes: of messages in a call, of attributes in a message, of hiding one."""

from __future__ import annotations

BATCH_LIMIT = 10
ATTRIBUTE_LIMIT = 10
# Counted from when a message was received.
HIDDEN_LIMIT_SECONDS = 43_200
