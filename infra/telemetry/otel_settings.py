"""OpenTelemetry's own settings, as far as they are decided here; the SDK reads all the others."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self, cast
from urllib.parse import urlsplit

from opentelemetry.util.re import parse_env_headers

from schema.errors import Misconfigured

if TYPE_CHECKING:
    from collections.abc import Mapping

Protocol = Literal["http/protobuf", "grpc"]
# It writes the headers that it cannot read, and they hold keys.
logging.getLogger("opentelemetry.util.re").disabled = True
_PROTOCOLS = ("http/protobuf", "grpc")


@dataclass(frozen=True, slots=True)
class OtelSettings:
    """By which protocol each signal leaves the process, if it does."""

    traces: Protocol | None = None
    metrics: Protocol | None = None
    is_disabled: bool = False

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """Read the settings; raise ``Misconfigured`` for one that asks for what there is not."""
        if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
            return cls(is_disabled=True)
        return cls(_protocol(environment, "TRACES"), _protocol(environment, "METRICS"))


def _protocol(environment: Mapping[str, str], signal: str) -> Protocol | None:
    """Give the protocol of a signal; nothing without an endpoint: a default would be a guess."""
    exporter = environment.get(f"OTEL_{signal}_EXPORTER") or "otlp"
    if exporter not in {"otlp", "none"}:
        raise Misconfigured(f"OTEL_{signal}_EXPORTER: {exporter[:50]!r} is neither otlp nor none")
    endpoint = _setting(environment, signal, "ENDPOINT")
    if exporter == "none" or not endpoint:
        return None
    _check_headers(environment, signal)
    if "@" in urlsplit(endpoint if "//" in endpoint else f"//{endpoint}").netloc:
        raise Misconfigured(
            "OTEL_EXPORTER_OTLP_ENDPOINT: credentials in an address get into logs; they belong"
            " into OTEL_EXPORTER_OTLP_HEADERS"
        )
    protocol = _setting(environment, signal, "PROTOCOL") or "http/protobuf"
    if protocol not in _PROTOCOLS:
        raise Misconfigured(
            f"OTEL_EXPORTER_OTLP_PROTOCOL: {protocol[:50]!r} is none of {', '.join(_PROTOCOLS)}"
        )
    return cast(Protocol, protocol)


def _check_headers(environment: Mapping[str, str], signal: str) -> None:
    """Refuse headers of which the exporter would leave some out."""
    for name in (f"OTEL_EXPORTER_OTLP_{signal}_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS"):
        headers = environment.get(name, "").split(",")
        for number, header in enumerate(headers, 1):
            if header.strip() and not parse_env_headers(header, liberal=True):
                raise Misconfigured(f"{name}: header {number} of {len(headers)} is not name=value")


def _setting(environment: Mapping[str, str], signal: str, name: str) -> str:
    """Give a setting of the OTLP exporter: that of the signal goes before that of all signals."""
    own = environment.get(f"OTEL_EXPORTER_OTLP_{signal}_{name}", "").strip()
    return own or environment.get(f"OTEL_EXPORTER_OTLP_{name}", "").strip()
