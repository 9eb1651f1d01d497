"""A small, fast, in-memory SQS: standard queues over AWS JSON 1.0, on a real loopback socket.

``async with SqsStub() as stub`` runs it inside a test, where ``stub.faults`` scripts what goes
wrong; ``python -m tests.stubs.sqs --port N`` runs it as a process of its own, for benchmarks.
``tests/integration/test_sqs_stub.py`` holds it to LocalStack. FIFO queues and redrive are not
in it.
"""

from tests.stubs.sqs.faults import (
    BlackHole,
    Call,
    DropMessages,
    DuplicateMessages,
    EmptyReceive,
    FailEntries,
    Fault,
    Page,
    Refuse,
    ReorderMessages,
    Reset,
    Slow,
)
from tests.stubs.sqs.server import SqsStub

__all__ = [
    "BlackHole",
    "Call",
    "DropMessages",
    "DuplicateMessages",
    "EmptyReceive",
    "FailEntries",
    "Fault",
    "Page",
    "Refuse",
    "ReorderMessages",
    "Reset",
    "Slow",
    "SqsStub",
]
