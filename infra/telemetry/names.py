"""Names of spans, attributes and metrics: the only place where they are spelt.

Those without our prefix are OpenTelemetry's semantic conventions for HTTP, messaging and errors.
"""

from __future__ import annotations

from typing import NamedTuple

from opentelemetry.trace import SpanKind

SCOPE = "haulage"
SERVICE_NAMESPACE = "haulage"


class Operation(NamedTuple):
    """A step on the way of an entry; ``type`` is what the messaging conventions call it."""

    name: str
    type: str | None
    kind: SpanKind


SUBMIT = Operation("submit", "create", SpanKind.PRODUCER)
RELAY = Operation("relay", "send", SpanKind.CLIENT)
RECEIVE = Operation("receive", "receive", SpanKind.CLIENT)
PROCESS = Operation("process", "process", SpanKind.CONSUMER)
SETTLE = Operation("settle", "settle", SpanKind.CLIENT)
REPAIR = Operation("repair", None, SpanKind.INTERNAL)
# One run of a processor; only on request, because there may be as many as there are inputs.
RUN = Operation("run", None, SpanKind.INTERNAL)

ERROR_TYPE = "error.type"

HTTP_METHOD = "http.request.method"
HTTP_ROUTE = "http.route"
HTTP_STATUS = "http.response.status_code"
URL_PATH = "url.path"
URL_SCHEME = "url.scheme"

MESSAGING_SYSTEM = "messaging.system"
MESSAGING_DESTINATION = "messaging.destination.name"
MESSAGING_OPERATION = "messaging.operation.name"
MESSAGING_OPERATION_TYPE = "messaging.operation.type"
MESSAGING_BATCH_COUNT = "messaging.batch.message_count"
MESSAGING_CONVERSATION_ID = "messaging.message.conversation_id"

CORRELATION_ID = "haulage.correlation_id"
JOB_KEY = "haulage.job.key"
KIND = "haulage.kind"
OWNER = "haulage.owner"
ENTRY_ID = "haulage.entry.id"
ENTRY_EPOCH = "haulage.entry.epoch"
ENTRY_ENDED = "haulage.entry.ended"
INPUTS = "haulage.inputs"
INPUTS_ACCEPTED = "haulage.inputs.accepted"
INPUTS_REFUSED = "haulage.inputs.refused"
ORDINAL = "haulage.input.ordinal"
ATTEMPT = "haulage.input.attempt"
INPUT_STATUS = "haulage.input.status"
DUPLICATES = "haulage.message.duplicates"
REPLAYED = "haulage.replayed"
LOST_WORKER = "haulage.lost_worker"
LAPSED_SECONDS = "haulage.lapsed_seconds"
# How long an entry lay where: due in the outbox, as a message in the queue, claimed and waiting.
DWELL_OUTBOX_SECONDS = "haulage.dwell.outbox_seconds"
DWELL_QUEUE_SECONDS = "haulage.dwell.queue_seconds"
DWELL_CONSUMER_SECONDS = "haulage.dwell.consumer_seconds"

INPUT_FAILED = "input.failed"
