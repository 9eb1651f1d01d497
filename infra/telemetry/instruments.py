"""What a part of a process is handed to tell what it does; by itself it tells nobody."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from infra.telemetry.metrics import NO_METRICS, Metrics
from infra.telemetry.tracing import OFF, Tracing

if TYPE_CHECKING:
    from infra.telemetry.exposition import Exposition


@dataclass(frozen=True, slots=True)
class Instruments:
    """The spans that a process makes, and what it counts and measures."""

    tracing: Tracing = OFF
    metrics: Metrics = NO_METRICS
    # What a page of metrics is made of, where the process is to have one.
    exposition: Exposition | None = None


SILENT: Final = Instruments()
