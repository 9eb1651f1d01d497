"""Metrics as Prometheus asks for them, from a registry of the process's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricReader


class Exposition:
    """What a page of metrics is made of; ``reader`` belongs to the provider that counts."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.reader: MetricReader = PrometheusMetricReader(
            scope_info_enabled=False, registry=self._registry
        )

    def text(self) -> bytes:
        """Give what is counted now, in the form that ``content_type`` names."""
        return generate_latest(self._registry)
