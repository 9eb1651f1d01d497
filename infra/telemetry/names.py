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
HTTP_METHOD_ORIGINAL = "http.request.method_original"
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

# Metrics. Their attributes are few and have few values: never a job, an owner or a fingerprint.
METRIC_KIND = "kind"
METRIC_OUTCOME = "outcome"
METRIC_QUEUE = "queue"
HTTP_SERVER_DURATION = "http.server.request.duration"
SETTLED = "haulage.inputs.settled"
RETRIED = "haulage.inputs.retried"
DIED = "haulage.inputs.died"
LEASES_LOST = "haulage.leases.lost"
DUPLICATE_MESSAGES = "haulage.messages.duplicate"
LAPSES_REPAIRED = "haulage.lapses.repaired"
RELAYED = "haulage.relay.messages"
RELAY_ERRORS = "haulage.relay.errors"
QUEUE_WAIT = "haulage.queue.wait"
RUN_TIME = "haulage.run.time"
END_TO_END = "haulage.end_to_end.time"
POOL_WAIT = "haulage.database.pool.wait"
LOOP_LAG = "haulage.loop.lag"
IN_FLIGHT = "haulage.consumer.in_flight"
CAPACITY = "haulage.consumer.capacity"
LIMIT = "haulage.consumer.limit"
TARGET = "haulage.consumer.target"
OLDEST_RUNNABLE = "haulage.oldest_runnable.age"
OUTBOX_LAG = "haulage.outbox.lag"
BACKLOG_ENTRIES = "haulage.backlog.entries"
BACKLOG_INPUTS = "haulage.backlog.inputs"
BACKLOG_SECONDS = "haulage.backlog.seconds_per_consumer"
RUNNING_INPUTS = "haulage.running.inputs"
BUSY_CONSUMERS = "haulage.busy_consumers"
DEAD_LETTERS = "haulage.dead_letters"
DEAD_LETTER_CAUSES = "haulage.dead_letters.fingerprints"
