"""Settings: plain numbers with their units in their names, read once from the environment.

Every field is the environment variable ``HAULAGE_<FIELD>`` unless it has another name of its
own below. An unknown name under the prefix is an error, so that a misspelt limit never passes.
AWS credentials, region and endpoint are botocore's own (``AWS_ENDPOINT_URL``, …).
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import TYPE_CHECKING, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from infra.object_names import is_bucket
from infra.queue.limits import BATCH_LIMIT
from schema.errors import Misconfigured

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

PREFIX = "HAULAGE_"
_OWN_NAMES = {"DATABASE_URL": "database_url", "CONSUMER_MODE": "consumer_mode"}
# What clients and the local stack keep under the same prefix; the processes pass over it.
_CLIENT_NAMES = frozenset({"HAULAGE_URL", "HAULAGE_API_KEY", "HAULAGE_ADMIN_KEY"})
_LOCAL_PREFIX = "HAULAGE_LOCAL_"
# What waits, waits for a day at most: Postgres and the event loop take no endless times.
_DAY = 86_400
# Instances drift apart: a round of maintenance begins up to so much later than its interval.
_DRIFT = 1.2
# How like a misspelt name another has to be to be meant, the prefix aside: it is like itself.
_NEAR = 0.85
# Kubernetes tells every pod of services, in variables that begin with their names: one that is
# called haulage-api would be taken for settings.
_SERVICE_NAME = re.compile(
    r"HAULAGE_(\w+_)?(SERVICE_(HOST|PORT)(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
_SERVICE_VALUE = re.compile(r"(tcp|udp|sctp)://\S+")
_QUEUE_URL = re.compile(r"https?://[^/\s?#]+/[^\s?#]+")


class Settings(BaseModel):
    """All settings of the three processes; a process reads those of its own duties."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, allow_inf_nan=False
    )

    # The two ways of working, and the neighbours.
    consumer_mode: Literal["sqs-consumer", "outbox"] = "sqs-consumer"
    database_url: str = Field(min_length=1)
    database_direct_url: str | None = Field(
        default=None, description="Past a pooler: LISTEN and migrations go there"
    )
    queue_url: str | None = None
    events_queue_url: str | None = Field(default=None, description="Where dead letters are told")
    dead_letter_queue_url: str | None = Field(default=None, description="The queue's own DLQ")
    bucket: str | None = None
    kinds: str = Field(default="", description="Kinds from outside: package.module:NAME, …")
    consumer_kinds: str = Field(default="", description="Work on these kinds only: export, …")
    kind_policies: str = Field(
        default="", description='JSON by kind: {"export": {"maxAttempts": 8, …}}; docs/settings.md'
    )

    # Database.
    database_pool_size: int = Field(default=10, ge=1, le=200)
    database_pool_timeout_seconds: float = Field(default=10, gt=0, le=_DAY)
    database_connect_timeout_seconds: float = Field(default=5, gt=0, le=_DAY)
    statement_timeout_seconds: float = Field(default=30, ge=0.001, le=_DAY)
    idle_in_transaction_timeout_seconds: float = Field(default=10, ge=0.001, le=_DAY)
    database_pooler: Literal["none", "transaction"] = "none"
    notify: bool = Field(default=True, description="Wake sleepers after a commit")

    # API.
    api_host: str = "127.0.0.1"
    api_port: int = Field(default=8080, ge=0, le=65_535)
    api_drain_delay_seconds: float = Field(default=1, ge=0, le=300)
    max_body_bytes: int = Field(default=64 * 1024 * 1024, ge=1024)
    max_inputs: int = Field(default=100_000, ge=1, le=10_000_000)
    max_stream_bytes: int = Field(default=1024**3, ge=1024)
    max_stream_inputs: int = Field(default=1_000_000, ge=1, le=10_000_000)
    max_input_bytes: int = Field(default=16 * 1024, ge=16)
    data_content_limit: int = Field(default=1_000, ge=0, le=100_000)
    data_content_bytes: int = Field(default=1024 * 1024, ge=0)
    copy_from_inputs: int = Field(default=2_000, ge=1)
    max_concurrent_submissions: int = Field(default=4, ge=1)

    # Health of the processes without a public HTTP server; port 0: none.
    health_host: str = "127.0.0.1"
    health_port: int = Field(default=0, ge=0, le=65_535)
    liveness_timeout_seconds: float = Field(default=90, gt=0, le=_DAY)

    # Dispatcher.
    relay_batch: int = Field(default=200, ge=1, le=10_000)
    relay_window: int = Field(default=200, ge=1, le=100_000)
    relay_lock_seconds: float = Field(default=30, gt=0, le=_DAY)
    relay_concurrency: int = Field(default=4, ge=1, le=64)
    relay_backoff_base_seconds: float = Field(default=0.5, gt=0, le=_DAY)
    relay_backoff_cap_seconds: float = Field(default=60, gt=0, le=_DAY)
    max_message_bytes: int = Field(default=256 * 1024, ge=1024, le=1024 * 1024)
    resend_after_seconds: float = Field(default=900, gt=0, le=_DAY)
    maintenance_interval_seconds: float = Field(default=5, gt=0, le=_DAY)
    maintenance_batch: int = Field(default=100, ge=1, le=10_000)
    poll_floor_seconds: float = Field(default=5, gt=0, le=_DAY)

    # For how long records are kept after they ended; 0: for ever.
    retain_jobs_days: float = Field(default=90, ge=0, le=36_500)
    retain_attempts_days: float = Field(default=90, ge=0, le=36_500)
    retain_parked_messages_days: float = Field(default=30, ge=0, le=36_500)
    retain_redrives_days: float = Field(default=365, ge=0, le=36_500)

    # Consumer.
    receivers: int = Field(
        default=2,
        ge=1,
        le=32,
        description="Long polls open at once, at most: one that fills the room is the only one",
    )
    concurrency: int = Field(default=16, ge=1, le=10_000)
    concurrency_minimum: int = Field(default=1, ge=1, le=10_000)
    concurrency_window_seconds: float = Field(default=1, gt=0, le=_DAY)
    prefetch_inputs: int = Field(default=0, ge=0, le=100_000)
    prefetch_seconds: float = Field(default=2, gt=0, le=_DAY)
    receive_wait_seconds: int = Field(default=20, ge=0, le=20)
    receive_entries: int = Field(default=10, ge=1, le=1_000)
    lease_seconds: float = Field(default=30, ge=1, le=43_200)
    settle_batch: int = Field(default=1_000, ge=1, le=10_000)
    drain_seconds: float = Field(default=25, ge=0, le=_DAY)
    unknown_kind_delay_seconds: int = Field(default=30, ge=1, le=43_200)
    cancel_grace_seconds: float = Field(
        default=3,
        gt=0,
        le=_DAY,
        description="Until a processor that ignores its cancellation is left alone",
    )
    blocked_loop_seconds: float | None = Field(
        default=None,
        gt=0,
        le=_DAY,
        description="Until a blocked process is ended; default: the lease",
    )

    # Processes of kinds with process isolation: one input each at a time, `concurrency` at most.
    isolated_start_seconds: float = Field(default=60, gt=0, le=_DAY)
    isolated_idle_seconds: float = Field(default=60, ge=0, le=_DAY)
    isolated_inputs: int = Field(default=10_000, ge=1, description="Until a process is replaced")

    # Clients of AWS. Long polls have a client, and so a pool, to themselves.
    aws_connections: int = Field(default=50, ge=1, le=1_000)
    aws_connect_timeout_seconds: float = Field(default=5, gt=0, le=_DAY)
    aws_read_timeout_seconds: float = Field(default=30, gt=0, le=_DAY)
    aws_attempts: int = Field(default=3, ge=1, le=10, description="Tries of one call, all told")

    # Export.
    reuse_enabled: bool = True
    reuse_days: int = Field(default=30, ge=0, le=36_500)
    reuse_verify: bool = Field(default=False, description="Ask S3 before a file is reused")
    export_sql: str | None = None
    export_database_url: str | None = Field(default=None, description="Default: DATABASE_URL")
    export_database_pooler: Literal["same", "none", "transaction"] = Field(
        default="same", description="Before the source; same: as HAULAGE_DATABASE_POOLER"
    )
    export_streams: int = Field(default=4, ge=1, le=100, description="Reads of the source at once")
    export_part_bytes: int = Field(default=8 * 1024 * 1024, ge=5 * 1024 * 1024, le=5 * 1024**3)
    export_max_bytes: int = Field(default=10 * 1024**3, ge=1, le=5 * 1024**4)

    # Logs.
    log_format: Literal["auto", "json", "console"] = "auto"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_success_sample: float = Field(
        default=1.0, ge=0, le=1, description="Share of correlation ids whose successes are logged"
    )

    # Traces and metrics; where they go is said by OpenTelemetry's own variables, `OTEL_…`.
    trace_runs: bool = Field(default=False, description="A span for each run of a processor")
    prometheus: bool = Field(default=True, description="`/metrics` beside `/livez` and `/readyz`")
    api_prometheus: bool = Field(default=False, description="`/metrics` on the port of the API")
    emf: bool = Field(default=False, description="Metrics for CloudWatch on standard output")
    emf_interval_seconds: float = Field(default=60, ge=1, le=_DAY)

    @property
    def receipt_calls(self) -> int:
        """Give how many deletes, and how many extensions, of a consumer may wait for SQS at once.

        A third of the connections each: neither takes them from the other, nor both all.
        """
        return max(1, self.aws_connections // 3)

    @property
    def large_submissions(self) -> int:
        """Give how many large bodies an API process works on at once.

        Each may hold a connection while it is stored: one at least is left to other requests,
        unless there is no other.
        """
        return min(self.max_concurrent_submissions, max(1, self.database_pool_size - 1))

    @property
    def is_exposed_beside_health(self) -> bool:
        """Say whether a process with a port for its health has a page of metrics there."""
        return self.prometheus and self.health_port != 0

    @property
    def work_queue_url(self) -> str | None:
        """Give the queue of inputs, nothing without SQS; raise ``Misconfigured`` if it is not set.

        For who relays or consumes: the API needs none in either mode.
        """
        if self.consumer_mode == "outbox":
            return None
        if not self.queue_url:
            raise Misconfigured("CONSUMER_MODE=sqs-consumer needs HAULAGE_QUEUE_URL")
        return self.queue_url

    @property
    def most_entries(self) -> int:
        """Give how many entries a claim may bring: a call to SQS brings ten at most."""
        if self.consumer_mode == "outbox":
            return self.receive_entries
        return min(self.receive_entries, BATCH_LIMIT)

    @property
    def session_url(self) -> tuple[str, str]:
        """Give where a connection is a session of its own, and the setting that says so."""
        if self.database_direct_url:
            return self.database_direct_url, "HAULAGE_DATABASE_DIRECT_URL"
        return self.database_url, "DATABASE_URL"

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """Read the settings; raise ``Misconfigured`` naming each variable that is wrong.

        An empty variable is one that is not set: templates of deployments write them so.
        """
        fields = {_name(field): field for field in cls.model_fields}
        environment = _without_services(environment, fields)
        values = {
            fields[name]: value for name, value in environment.items() if name in fields and value
        }
        lines = _unknown_names(environment)
        try:
            settings = cls.model_validate(values)
        except ValidationError as error:
            for problem in error.errors():
                field = str(problem["loc"][0]) if problem["loc"] else ""
                lines.append(f"{_name(field) if field else 'settings'}: {problem['msg']}")
            raise Misconfigured("; ".join(lines)) from None
        if lines:
            raise Misconfigured("; ".join(lines))
        return settings

    @field_validator("bucket")
    @classmethod
    def _names_a_bucket(cls, name: str | None) -> str | None:
        if name is not None and not is_bucket(name):
            msg = "the name of a bucket is 3 to 63 of a-z, 0-9, - and ., without s3:// or a folder"
            raise ValueError(msg)
        return name

    @field_validator("queue_url", "events_queue_url", "dead_letter_queue_url")
    @classmethod
    def _is_a_standard_queue(cls, url: str | None) -> str | None:
        if url is None:
            return None
        if not _QUEUE_URL.fullmatch(url):
            msg = "is not the URL of a queue, such as https://sqs.REGION.amazonaws.com/ACCOUNT/NAME"
            raise ValueError(msg)
        if url.rstrip("/").endswith(".fifo"):
            msg = "a FIFO queue takes none of our messages: give it a standard queue"
            raise ValueError(msg)
        return url

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if self.resend_after_seconds <= self.lease_seconds:
            msg = "HAULAGE_RESEND_AFTER_SECONDS must be larger than HAULAGE_LEASE_SECONDS"
            raise ValueError(msg)
        if self.aws_read_timeout_seconds <= self.receive_wait_seconds:
            msg = "HAULAGE_AWS_READ_TIMEOUT_SECONDS must exceed HAULAGE_RECEIVE_WAIT_SECONDS"
            raise ValueError(msg)
        # Inputs and events are sent at once, and neither may wait for the other's connections.
        if self.aws_connections < max(self.receivers, 2 * self.relay_concurrency):
            msg = (
                "HAULAGE_AWS_CONNECTIONS must not be less than HAULAGE_RECEIVERS or"
                " twice HAULAGE_RELAY_CONCURRENCY"
            )
            raise ValueError(msg)
        if self.maintenance_interval_seconds * _DRIFT >= self.liveness_timeout_seconds:
            msg = (
                "HAULAGE_LIVENESS_TIMEOUT_SECONDS must be larger than"
                f" {_DRIFT} times HAULAGE_MAINTENANCE_INTERVAL_SECONDS"
            )
            raise ValueError(msg)
        is_polling_sqs = self.consumer_mode != "outbox"
        if is_polling_sqs and self.receive_wait_seconds * _DRIFT >= self.liveness_timeout_seconds:
            msg = (
                "HAULAGE_LIVENESS_TIMEOUT_SECONDS must be larger than"
                f" {_DRIFT} times HAULAGE_RECEIVE_WAIT_SECONDS"
            )
            raise ValueError(msg)
        queues = [self.queue_url, self.events_queue_url, self.dead_letter_queue_url]
        given = [url.rstrip("/") for url in queues if url]
        if len(set(given)) < len(given):
            msg = (
                "HAULAGE_QUEUE_URL, HAULAGE_EVENTS_QUEUE_URL and HAULAGE_DEAD_LETTER_QUEUE_URL"
                " must be different queues"
            )
            raise ValueError(msg)
        if self.poll_floor_seconds >= self.liveness_timeout_seconds:
            msg = "HAULAGE_LIVENESS_TIMEOUT_SECONDS must be larger than HAULAGE_POLL_FLOOR_SECONDS"
            raise ValueError(msg)
        return self


def _name(field: str) -> str:
    names = {field: name for name, field in _OWN_NAMES.items()}
    return names.get(field, PREFIX + field.upper())


def _without_services(environment: Mapping[str, str], fields: Container[str]) -> dict[str, str]:
    """Leave out what tells of a service of Kubernetes, and not of a setting."""
    return {
        name: value
        for name, value in environment.items()
        if not (
            (name not in fields and _SERVICE_NAME.fullmatch(name))
            or (name.endswith("_PORT") and _SERVICE_VALUE.fullmatch(value))
        )
    }


def _unknown_names(environment: Mapping[str, str]) -> list[str]:
    known = {_name(field) for field in Settings.model_fields} | _CLIENT_NAMES
    by_bare_name = {name.removeprefix(PREFIX): name for name in known}
    lines = []
    for name in sorted(environment.keys() - known):
        if name.startswith(PREFIX) and not name.startswith(_LOCAL_PREFIX):
            bare = name.removeprefix(PREFIX)
            nearest = get_close_matches(bare, by_bare_name, n=1, cutoff=_NEAR)
            hint = f"; the nearest is {by_bare_name[nearest[0]]}" if nearest else ""
            lines.append(f"{name}: is no setting of Haulage{hint}")
    return lines
