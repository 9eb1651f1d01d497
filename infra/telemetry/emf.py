"""Metrics for CloudWatch without an agent's help: lines of JSON in its embedded metric format.

Whatever ships the standard output to CloudWatch Logs makes metrics of them. Only what is ours and
has cheap dimensions is written: each combination of values is a metric that is paid for.
"""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from opentelemetry.sdk.metrics import Counter, Histogram
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    HistogramDataPoint,
    MetricExporter,
    MetricExportResult,
    NumberDataPoint,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import TextIO

    from opentelemetry.sdk.metrics.export import (
        ExponentialHistogramDataPoint,
        MetricsData,
        ResourceMetrics,
    )

    DataPoint = NumberDataPoint | HistogramDataPoint | ExponentialHistogramDataPoint
    Dimensions = tuple[tuple[str, str], ...]

NAMESPACE = "Haulage"
_PREFIX = "haulage."
_SERVICE = "service"
# What CloudWatch takes in one line.
_MOST_METRICS = 100


class EmfExporter(MetricExporter):
    """Writes what was counted since the last time, one line for each set of dimensions."""

    def __init__(self, out: TextIO) -> None:
        delta = AggregationTemporality.DELTA
        super().__init__(preferred_temporality={Counter: delta, Histogram: delta})
        self._out = out

    def export(
        self,
        metrics_data: MetricsData,
        timeout_millis: float = 10_000,  # noqa: ARG002
        **_: Any,  # noqa: ANN401
    ) -> MetricExportResult:
        """Write the lines; the stream is the process's own, so there is nothing to wait for."""
        for line in lines(metrics_data):
            self._out.write(json.dumps(line, separators=(",", ":")) + "\n")
        self._out.flush()
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 10_000) -> bool:  # noqa: ARG002
        """Do nothing: every export is written out."""
        return True

    def shutdown(self, timeout_millis: float = 30_000, **_: Any) -> None:  # noqa: ANN401
        """Do nothing: the stream is not ours to close."""


def lines(data: MetricsData) -> Iterator[dict[str, Any]]:
    """Give the lines of one collection."""
    for of_resource in data.resource_metrics:
        service = str(of_resource.resource.attributes.get("service.name", "haulage"))
        sets: dict[Dimensions, dict[str, tuple[str, Any]]] = defaultdict(dict)
        moment_ns = 0
        for name, unit, point in _points(of_resource):
            dimensions = tuple(sorted((key, str(it)) for key, it in _attributes(point)))
            moment_ns = max(moment_ns, point.time_unix_nano)
            if (value := _value(point)) is not None:
                sets[dimensions][name] = unit, value
        for dimensions, metrics in sets.items():
            members = list(metrics.items())
            for start in range(0, len(members), _MOST_METRICS):
                yield _line(
                    {_SERVICE: service, **dict(dimensions)},
                    dict(members[start : start + _MOST_METRICS]),
                    moment_ns // 1_000_000,
                )


def _points(of_resource: ResourceMetrics) -> Iterator[tuple[str, str, DataPoint]]:
    for of_scope in of_resource.scope_metrics:
        for metric in of_scope.metrics:
            if metric.name.startswith(_PREFIX):
                unit = "Seconds" if metric.unit == "s" else "Count"
                for point in metric.data.data_points:
                    yield metric.name.removeprefix(_PREFIX), unit, point


def _attributes(point: DataPoint) -> Iterable[tuple[str, object]]:
    return (point.attributes or {}).items()


def _value(point: DataPoint) -> Any:  # noqa: ANN401 - a number, or a document
    match point:
        case NumberDataPoint():
            return point.value
        case HistogramDataPoint():
            return _distribution(point)
        case _:
            return None  # nothing of ours is exponential


def _line(
    dimensions: Mapping[str, str], metrics: Mapping[str, tuple[str, Any]], moment_ms: int
) -> dict[str, Any]:
    return {
        "_aws": {
            "Timestamp": moment_ms,
            "CloudWatchMetrics": [
                {
                    "Namespace": NAMESPACE,
                    "Dimensions": [list(dimensions)],
                    "Metrics": [
                        {"Name": name, "Unit": unit} for name, (unit, _) in metrics.items()
                    ],
                }
            ],
        },
        **dimensions,
        **{name: value for name, (_, value) in metrics.items()},
    }


def _distribution(point: HistogramDataPoint) -> dict[str, Any] | None:
    """Give values and how often each came, a bucket being its middle, so that percentiles work."""
    if not point.count:
        return None
    edges = [point.min, *point.explicit_bounds, point.max]
    values, counts = [], []
    for (low, high), count in zip(pairwise(edges), point.bucket_counts, strict=True):
        if count:
            middle = (max(low, point.min) + min(high, point.max)) / 2
            values.append(middle)
            counts.append(count)
    return {
        "Values": values,
        "Counts": counts,
        "Min": point.min,
        "Max": point.max,
        "Count": point.count,
        "Sum": point.sum,
    }
