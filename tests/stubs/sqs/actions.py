"""From a request to its answer: dispatch by action, carry out, and let faults have their way."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.stubs.sqs import messages
from tests.stubs.sqs.errors import SqsError
from tests.stubs.sqs.faults import BlackHole, EmptyReceive, FailEntries, Faults, Page, Refuse, Reset

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.stubs.sqs.faults import Fault
    from tests.stubs.sqs.messages import Entry
    from tests.stubs.sqs.queue import Poll, Queue
    from tests.stubs.sqs.queues import Queues


@dataclass(slots=True)
class Answered:
    """A call that was carried out: its answer, or the poll that will bring one."""

    answer: dict[str, Any] | Poll
    fault: Fault | None


class Actions:
    """The API: every action of SQS that this stub knows."""

    def __init__(self, queues: Queues, faults: Faults) -> None:
        self.calls: Counter[str] = Counter()
        self._faults = faults
        self._queues = queues
        self._known: dict[str, Callable[[dict[str, Any], Fault | None], Entry | Poll]] = {
            "SendMessage": self._send,
            "SendMessageBatch": self._send_batch,
            "ReceiveMessage": self._receive,
            "DeleteMessage": self._delete,
            "DeleteMessageBatch": self._delete_batch,
            "ChangeMessageVisibility": self._change_visibility,
            "ChangeMessageVisibilityBatch": self._change_visibility_batch,
            "CreateQueue": lambda parameters, _: queues.create(parameters),
            "DeleteQueue": lambda parameters, _: queues.delete(parameters),
            "GetQueueUrl": lambda parameters, _: queues.get_url(parameters),
            "ListQueues": lambda parameters, _: queues.list(parameters),
            "GetQueueAttributes": lambda parameters, _: queues.get_attributes(parameters),
            "SetQueueAttributes": lambda parameters, _: queues.set_attributes(parameters),
            "PurgeQueue": lambda parameters, _: queues.purge(parameters),
        }

    def carry_out(self, action: str, parameters: dict[str, Any]) -> Answered:
        """Do what is asked; raise ``SqsError`` when it is refused."""
        self.calls[action] += 1
        known = self._known.get(action)
        if known is None:
            raise SqsError("UnsupportedOperation", f"This stub does not know {action}.")
        fault = self._faults.pick(action, parameters)
        if isinstance(fault, Refuse):
            raise SqsError(fault.name, fault.message, status=fault.status)
        if isinstance(fault, Page) or (isinstance(fault, BlackHole | Reset) and not fault.done):
            return Answered({}, fault)
        return Answered(known(parameters, fault), fault)

    def _send(self, parameters: dict[str, Any], fault: Fault | None) -> Entry:
        queue = self._queues.of(parameters)
        answer = messages.send(queue, parameters, fault)
        queue.serve()
        return answer

    def _send_batch(self, parameters: dict[str, Any], fault: Fault | None) -> Entry:
        queue = self._queues.of(parameters)
        messages.check_batch_bytes(messages.checked_entries(parameters.get("Entries")))
        return self._batch(
            queue, parameters, fault, lambda entry: messages.send(queue, entry, fault)
        )

    def _receive(self, parameters: dict[str, Any], fault: Fault | None) -> Entry | Poll:
        queue = self._queues.of(parameters)
        return {} if isinstance(fault, EmptyReceive) else messages.receive(queue, parameters)

    def _delete(self, parameters: dict[str, Any], _fault: Fault | None) -> Entry:
        return messages.delete(self._queues.of(parameters), parameters)

    def _delete_batch(self, parameters: dict[str, Any], fault: Fault | None) -> Entry:
        queue = self._queues.of(parameters)
        return self._batch(queue, parameters, fault, lambda entry: messages.delete(queue, entry))

    def _change_visibility(self, parameters: dict[str, Any], _fault: Fault | None) -> Entry:
        queue = self._queues.of(parameters)
        answer = messages.change_visibility(queue, parameters)
        queue.serve()
        return answer

    def _change_visibility_batch(self, parameters: dict[str, Any], fault: Fault | None) -> Entry:
        queue = self._queues.of(parameters)
        return self._batch(
            queue, parameters, fault, lambda entry: messages.change_visibility(queue, entry)
        )

    def _batch(
        self,
        queue: Queue,
        parameters: dict[str, Any],
        fault: Fault | None,
        carry_out: Callable[[Entry], Entry],
    ) -> Entry:
        spoiled: set[str] = set()
        if isinstance(fault, FailEntries):
            entries = messages.checked_entries(parameters.get("Entries"))
            spoiled = {entries[at]["Id"] for at in fault.positions if at < len(entries)}

        def carry_out_unless_spoiled(entry: Entry) -> Entry:
            if spoiled and entry["Id"] in spoiled and isinstance(fault, FailEntries):
                status = 400 if fault.sender_fault else 500
                raise SqsError(fault.code, "scripted", status=status)
            return carry_out(entry)

        successful, failed = messages.in_batch(parameters.get("Entries"), carry_out_unless_spoiled)
        queue.serve()
        answer: Entry = {"Successful": successful}
        if failed:
            answer["Failed"] = failed
        return answer
