"""OpenTelemetry's own settings: what is decided here, and what the SDK would pass over.

The SDK takes its default where it cannot read a value, which nobody notices until spans are missed.
"""

from __future__ import annotations

import logging
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self, cast
from urllib.parse import urlsplit

from opentelemetry.util.re import parse_env_headers

from schema.errors import Misconfigured

if TYPE_CHECKING:
    from collections.abc import Mapping

Protocol = Literal["http/protobuf", "grpc"]
# It writes the headers that it cannot read, and they hold keys.
logging.getLogger("opentelemetry.util.re").disabled = True
# A name that ends with -bin is of bytes to gRPC.
_HEADER_NAME = re.compile(r"[a-z0-9_.-]+(?<!-bin)")
_PROTOCOLS = ("http/protobuf", "grpc")
_RATIO_SAMPLERS = ("traceidratio", "parentbased_traceidratio")
_SAMPLERS = (
    "always_on",
    "always_off",
    "parentbased_always_on",
    "parentbased_always_off",
    *_RATIO_SAMPLERS,
)
_COMPRESSIONS: dict[str, tuple[str, ...]] = {
    "http/protobuf": ("none", "gzip", "deflate"),
    "grpc": ("gzip",),
}
# Whole numbers of spans, and the least that the SDK can use.
_QUEUE, _BATCH = "OTEL_BSP_MAX_QUEUE_SIZE", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE"
_DEFAULT_QUEUE, _DEFAULT_BATCH = 2_048, 512
_COUNTS = {
    _QUEUE: 1,
    _BATCH: 1,
    "OTEL_BSP_SCHEDULE_DELAY": 1,
    "OTEL_BSP_EXPORT_TIMEOUT": 0,
    "OTEL_ATTRIBUTE_COUNT_LIMIT": 0,
    "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT": 0,
    "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": 0,
    "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT": 0,
    "OTEL_SPAN_EVENT_COUNT_LIMIT": 0,
    "OTEL_SPAN_LINK_COUNT_LIMIT": 0,
    "OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT": 0,
    "OTEL_LINK_ATTRIBUTE_COUNT_LIMIT": 0,
}
_METRICS_CHOICES = {
    "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": ("cumulative", "delta", "lowmemory"),
    "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION": (
        "explicit_bucket_histogram",
        "base2_exponential_bucket_histogram",
    ),
}
_EXEMPLAR_FILTERS = ("trace_based", "always_on", "always_off")


@dataclass(frozen=True, slots=True)
class OtelSettings:
    """By which protocol each signal leaves the process, if it does."""

    traces: Protocol | None = None
    metrics: Protocol | None = None
    is_disabled: bool = False

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """Read the settings; raise ``Misconfigured`` for one that cannot be used.

        Those of a signal count where it is sent, those of metrics in any form always.
        """
        if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
            return cls(is_disabled=True)
        _check_choice(environment, "OTEL_METRICS_EXEMPLAR_FILTER", _EXEMPLAR_FILTERS)
        _check_resource(environment)
        found = cls(_protocol(environment, "TRACES"), _protocol(environment, "METRICS"))
        if found.traces:
            _check_spans(environment)
        if found.metrics:
            for name, choices in _METRICS_CHOICES.items():
                _check_choice(environment, name, choices)
            for name in ("OTEL_METRIC_EXPORT_INTERVAL", "OTEL_METRIC_EXPORT_TIMEOUT"):
                _check_duration(environment, name)
        return found


def _protocol(environment: Mapping[str, str], signal: str) -> Protocol | None:
    """Give the protocol of a signal; nothing without an endpoint: a default would be a guess."""
    exporter = environment.get(f"OTEL_{signal}_EXPORTER") or "otlp"
    if exporter not in {"otlp", "none"}:
        raise Misconfigured(f"OTEL_{signal}_EXPORTER: {exporter[:50]!r} is neither otlp nor none")
    endpoint = _setting(environment, signal, "ENDPOINT")
    if exporter == "none" or not endpoint:
        return None
    _check_headers(environment, signal)
    protocol = _setting(environment, signal, "PROTOCOL") or "http/protobuf"
    if protocol not in _PROTOCOLS:
        raise Misconfigured(
            f"OTEL_EXPORTER_OTLP_PROTOCOL: {protocol[:50]!r} is none of {', '.join(_PROTOCOLS)}"
        )
    _check_endpoint(endpoint, protocol)
    _check_exporter(environment, signal, protocol)
    return cast(Protocol, protocol)


def _check_endpoint(endpoint: str, protocol: str) -> None:
    """Refuse what is no address of a collector, without repeating it: it may hold a secret."""
    has_scheme = "://" in endpoint
    try:
        parts = urlsplit(endpoint if has_scheme else f"//{endpoint}")
        is_whole = bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise Misconfigured("OTEL_EXPORTER_OTLP_ENDPOINT is no address") from None
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise Misconfigured(
            "OTEL_EXPORTER_OTLP_ENDPOINT: credentials and queries in an address get into logs;"
            " keys belong into OTEL_EXPORTER_OTLP_HEADERS"
        )
    may_lack_scheme = protocol == "grpc" and not has_scheme
    if not is_whole or not (parts.scheme in {"http", "https"} or may_lack_scheme):
        raise Misconfigured(
            "OTEL_EXPORTER_OTLP_ENDPOINT is no address of a collector: http://… or https://…"
            + (", or host:port" if protocol == "grpc" else "")
        )


def _check_exporter(environment: Mapping[str, str], signal: str, protocol: str) -> None:
    """Check what the exporter of a signal reads, under its own name and under that of all."""
    for prefix in (f"OTEL_EXPORTER_OTLP_{signal}_", "OTEL_EXPORTER_OTLP_"):
        _check_choice(environment, f"{prefix}COMPRESSION", _COMPRESSIONS[protocol])
        _check_duration(environment, f"{prefix}TIMEOUT")
        for kind in ("CERTIFICATE", "CLIENT_KEY", "CLIENT_CERTIFICATE"):
            # Over HTTP the certificates to trust may be a directory of them.
            may_be_directory = kind == "CERTIFICATE" and protocol != "grpc"
            _check_file(environment, f"{prefix}{kind}", may_be_directory=may_be_directory)


def _check_spans(environment: Mapping[str, str]) -> None:
    """Check what the sampler, the queue of spans and their limits read."""
    _check_choice(environment, "OTEL_TRACES_SAMPLER", _SAMPLERS)
    argument = environment.get("OTEL_TRACES_SAMPLER_ARG", "").strip()
    is_ratio = environment.get("OTEL_TRACES_SAMPLER", "").lower() in _RATIO_SAMPLERS
    if is_ratio and argument and not 0 <= _number(argument) <= 1:
        raise Misconfigured(
            f"OTEL_TRACES_SAMPLER_ARG: {argument[:50]!r} is not a number from 0 to 1"
        )
    given: dict[str, int] = {}
    for name, least in _COUNTS.items():
        text = environment.get(name, "").strip()
        if not text:
            continue
        if not text.isdecimal() or int(text[:18]) < least:
            raise Misconfigured(f"{name}: {text[:50]!r} is not a whole number of {least} or more")
        given[name] = int(text[:18])
    if given.get(_BATCH, _DEFAULT_BATCH) > given.get(_QUEUE, _DEFAULT_QUEUE):
        raise Misconfigured(f"{_BATCH} (default {_DEFAULT_BATCH}) is more than {_QUEUE}")


def _check_choice(environment: Mapping[str, str], name: str, choices: tuple[str, ...]) -> None:
    value = environment.get(name, "")
    # As it stands: the SDK takes no white space around it.
    if value and value.lower() not in choices:
        raise Misconfigured(f"{name}: {value[:50]!r} is none of {', '.join(choices)}")


def _check_duration(environment: Mapping[str, str], name: str) -> None:
    text = environment.get(name, "").strip()
    if text and not 0 < _number(text) < math.inf:
        raise Misconfigured(f"{name}: {text[:50]!r} is not a number above 0")


def _check_file(environment: Mapping[str, str], name: str, *, may_be_directory: bool) -> None:
    path = environment.get(name, "")
    if not path:
        return
    is_there = Path(path).is_file() or (may_be_directory and Path(path).is_dir())
    if not is_there or not os.access(path, os.R_OK):
        raise Misconfigured(f"{name}: {path[:200]!r} is no file that can be read")


def _check_resource(environment: Mapping[str, str]) -> None:
    pairs = environment.get("OTEL_RESOURCE_ATTRIBUTES", "").split(",")
    for number, pair in enumerate(pairs, 1):
        if pair.strip() and "=" not in pair:
            raise Misconfigured(
                f"OTEL_RESOURCE_ATTRIBUTES: pair {number} of {len(pairs)} is not name=value"
            )


def _number(text: str) -> float:
    """Read a number; what is none compares with nothing."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def _check_headers(environment: Mapping[str, str], signal: str) -> None:
    """Refuse headers of which the exporter would leave some out, or show one when it fails."""
    for name in (f"OTEL_EXPORTER_OTLP_{signal}_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS"):
        headers = environment.get(name, "").split(",")
        for number, header in enumerate(headers, 1):
            if not header.strip():
                continue
            parsed = parse_env_headers(header, liberal=True)
            if not parsed or not all(map(_is_plain, parsed.items())):
                raise Misconfigured(
                    f"{name}: header {number} of {len(headers)} is not name=value, with a name of"
                    " a-z, 0-9, -, _ and ., but not -bin, and a value that is printable ASCII"
                )


def _is_plain(header: tuple[str, str]) -> bool:
    """Say whether a header may be sent over HTTP and gRPC alike, which show what they refuse."""
    name, value = header
    return bool(_HEADER_NAME.fullmatch(name)) and value.isascii() and value.isprintable()


def _setting(environment: Mapping[str, str], signal: str, name: str) -> str:
    """Give a setting of the OTLP exporter: that of the signal goes before that of all signals."""
    own = environment.get(f"OTEL_EXPORTER_OTLP_{signal}_{name}", "").strip()
    return own or environment.get(f"OTEL_EXPORTER_OTLP_{name}", "").strip()
