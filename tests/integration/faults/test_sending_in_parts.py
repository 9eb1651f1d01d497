"""Batches of which the queue takes a part: what became of that is known, whatever comes next."""

import pytest

from schema.errors import Unavailable
from tests.deliveries import Delivery
from tests.integration.faults.test_sending import outgoing, sender
from tests.stubs.sqs import Call, FailEntries, Fault, Refuse, SqsStub


@pytest.mark.parametrize(
    ("fault", "sent"),
    [(FailEntries((3,), "InvalidMessageContents", sender_fault=True), 9), (None, 5)],
    ids=["an entry", "the call"],
)
async def test_what_sqs_took_of_a_batch_stays_known_when_it_takes_no_more(
    station: Delivery, stub: SqsStub, fault: Fault | None, sent: int
) -> None:
    """A part that was refused is tried again, in a call that fails."""
    calls: list[Call] = []

    def hook(call: Call) -> Fault | None:
        calls.append(call)
        match len(calls):
            case 1:
                return fault or Refuse("InvalidMessageContents", 400, "See the documentation")
            case 2 if fault is None:
                return None
            case _:
                return Refuse("RequestThrottled", 400, "not so fast")

    ours = sender(station)
    (batch,) = ours.pack([outgoing(number, tracestate="a=b") for number in range(10)])
    stub.faults.hook = hook
    report = await ours.send(batch)
    assert len(report.sent) == sent
    assert {each.means for each in report.unsent} == {Unavailable}
    assert len(report.unsent) == 10 - sent
