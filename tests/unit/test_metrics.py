"""What is counted and measured, and how it is written for CloudWatch and Prometheus."""

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource

from infra.settle import Settled, Settlement
from infra.telemetry.emf import EmfExporter
from infra.telemetry.exposition import Exposition
from infra.telemetry.metrics import Metrics
from infra.telemetry.otel_settings import OtelSettings
from schema.errors import Misconfigured
from schema.lifecycle import InputStatus
from schema.outcome import Failed, Outcome, Succeeded, Verdict
from tests.claims import claim_of

COLLECTOR = "http://collector:4318"


def line(status: InputStatus, *, kind: str = "export", accepted: bool = True) -> Settled:
    claim = claim_of(kind, {})
    outcome: Outcome = Succeeded() if status is InputStatus.SUCCEEDED else Failed("Fault", "away")
    return Settled(
        Settlement(claim, claim.inputs[0], outcome, 1), Verdict(status), accepted, ended_early=False
    )


def happen(metrics: Metrics) -> None:
    """Let something of everything happen."""
    lines = [line(InputStatus.SUCCEEDED)] * 3 + [line(InputStatus.RETRY_WAIT, kind="order")]
    metrics.settled([*lines, line(InputStatus.DLQ), line(InputStatus.SUCCEEDED, accepted=False)])
    for run_seconds in (0.2, 0.3, 4.0):
        metrics.entry_ended(
            "export",
            ended="settled",
            waited_seconds=0.02,
            run_seconds=run_seconds,
            since_due_seconds=7.0,
        )
    metrics.relayed("inputs", sent=10, put_off=1, parked=0, is_away=False)
    metrics.request(method="POST", route="/jobs", status=202, seconds=0.01)
    metrics.gauge("haulage.example", "{input}", "An example", lambda: [(5, {"kind": "export"})])


def points(reader: InMemoryMetricReader) -> dict[str, dict[tuple[Any, ...], Any]]:
    data = reader.get_metrics_data()
    assert data is not None
    return {
        metric.name: {
            tuple((point.attributes or {}).values()): getattr(point, "value", None)
            for point in metric.data.data_points
        }
        for metric in data.resource_metrics[0].scope_metrics[0].metrics
    }


def test_what_was_accepted_is_counted_by_kind_and_outcome() -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    happen(Metrics(provider.get_meter("test")))
    found = points(reader)
    assert found["haulage.inputs.settled"] == {
        ("export", "SUCCEEDED"): 3,
        ("order", "RETRY_WAIT"): 1,
        ("export", "DLQ"): 1,
    }
    assert found["haulage.inputs.retried"] == {("order",): 1}
    assert found["haulage.inputs.died"] == {("export",): 1}
    assert found["haulage.relay.messages"] == {("inputs", "sent"): 10, ("inputs", "put off"): 1}
    assert found["haulage.example"] == {("export",): 5}
    provider.shutdown()


def test_what_alerts_count_is_there_before_anything_happened() -> None:
    exposition = Exposition()
    provider = MeterProvider([exposition.reader], shutdown_on_exit=False)
    metrics = Metrics(provider.get_meter("test"))
    metrics.consumes(["export", "order"])
    metrics.dispatches(["export", "order"], queues=["inputs", "event"])
    text = exposition.text().decode()
    page = (Path(__file__).parents[2] / "docs" / "on-call.md").read_text()
    used = set(re.findall(r"haulage_[a-z_]+_total", page))
    assert len(used) >= 5
    shown = set(re.findall(r"^(\w+)(?:\{.*\})? 0\.0$", text, re.MULTILINE))
    assert used <= shown
    for kind in ("export", "order"):
        assert f'haulage_lapses_repaired_total{{kind="{kind}"}} 0.0' in text
        for outcome in ("SUCCEEDED", "SKIPPED", "NOT_FOUND", "RETRY_WAIT", "DLQ", "PENDING"):
            labels = f'{{kind="{kind}",outcome="{outcome}"}}'
            assert f"haulage_inputs_settled_total{labels} 0.0" in text
    metrics.repaired("order", 24)
    text = exposition.text().decode()
    assert 'haulage_lapses_repaired_total{kind="order"} 24.0' in text
    provider.shutdown()


def test_a_dispatcher_without_a_relay_shows_no_counters_of_one() -> None:
    exposition = Exposition()
    provider = MeterProvider([exposition.reader], shutdown_on_exit=False)
    Metrics(provider.get_meter("test")).dispatches(["export"], queues=())
    assert "haulage_relay" not in exposition.text().decode()
    provider.shutdown()


def test_cloudwatch_gets_a_line_for_each_set_of_dimensions() -> None:
    out = io.StringIO()
    reader = PeriodicExportingMetricReader(EmfExporter(out), 3_600_000)
    provider = MeterProvider(
        [reader], Resource({"service.name": "haulage-consumer"}), shutdown_on_exit=False
    )
    metrics = Metrics(provider.get_meter("test"))
    happen(metrics)
    reader.force_flush()
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    by_dimensions = {
        tuple(
            sorted((name, it[name]) for name in it["_aws"]["CloudWatchMetrics"][0]["Dimensions"][0])
        ): it
        for it in lines
    }
    export = by_dimensions[("kind", "export"), ("service", "haulage-consumer")]
    assert export["_aws"]["CloudWatchMetrics"][0]["Namespace"] == "Haulage"
    assert {"Name": "run.time", "Unit": "Seconds"} in export["_aws"]["CloudWatchMetrics"][0][
        "Metrics"
    ]
    run_time = export["run.time"]
    assert (run_time["Count"], run_time["Min"], run_time["Max"]) == (3, 0.2, 4.0)
    assert sum(run_time["Counts"]) == 3
    assert len(run_time["Values"]) == len(run_time["Counts"])
    assert all(0.2 <= value <= 4.0 for value in run_time["Values"])
    assert export["example"] == 5
    told = {name for it in by_dimensions for name, _ in it}
    assert told == {"service", "kind", "outcome", "queue"}, "no dimension that grows"
    # The next collection tells what came since, not all over again.
    out.truncate(0)
    metrics.settled([line(InputStatus.SUCCEEDED)])
    reader.force_flush()
    (settled,) = [
        it["inputs.settled"]
        for it in map(json.loads, out.getvalue().strip("\0").splitlines())
        if it.get("outcome") == "SUCCEEDED"
    ]
    assert settled == 1
    provider.shutdown()


def test_prometheus_reads_counters_histograms_and_gauges() -> None:
    exposition = Exposition()
    provider = MeterProvider([exposition.reader], shutdown_on_exit=False)
    happen(Metrics(provider.get_meter("test")))
    text = exposition.text().decode()
    assert 'haulage_inputs_settled_total{kind="export",outcome="SUCCEEDED"} 3.0' in text
    assert 'haulage_run_time_seconds_bucket{kind="export",le="0.25"} 1.0' in text
    assert 'haulage_example{kind="export"} 5.0' in text
    assert 'http_server_request_duration_seconds_count{http_request_method="POST"' in text
    provider.shutdown()


def test_without_a_meter_nothing_is_looked_at() -> None:
    def never() -> Any:
        raise AssertionError("nobody counts")
        yield

    Metrics().settled(never())


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, OtelSettings()),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": " "}, OtelSettings()),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": COLLECTOR},
            OtelSettings("http/protobuf", "http/protobuf"),
        ),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": COLLECTOR, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            OtelSettings("grpc", "grpc"),
        ),
        (
            {
                "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": COLLECTOR,
                "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc",
            },
            OtelSettings("grpc", None),
        ),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": COLLECTOR, "OTEL_METRICS_EXPORTER": "none"},
            OtelSettings("http/protobuf", None),
        ),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": COLLECTOR, "OTEL_SDK_DISABLED": "True"},
            OtelSettings(is_disabled=True),
        ),
    ],
)
def test_opentelemetrys_own_variables_say_what_leaves_the_process(
    environment: dict[str, str], expected: OtelSettings
) -> None:
    assert OtelSettings.from_environment(environment) == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
        ("OTEL_TRACES_EXPORTER", "zipkin"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://user:secret@collector:4317"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "user:secret@collector:4317"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://[::1"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zip"),
        ("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "zip"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/nix/ca.pem"),
        ("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "/nix/ca.pem"),
        ("OTEL_EXPORTER_OTLP_METRICS_CERTIFICATE", "/nix/ca.pem"),
        ("OTEL_EXPORTER_OTLP_CLIENT_KEY", "/"),
        ("OTEL_TRACES_SAMPLER", "foo"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "abc"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "0"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4096"),
        ("OTEL_BSP_SCHEDULE_DELAY", "1.5"),
        ("OTEL_SPAN_EVENT_COUNT_LIMIT", "x"),
        ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "-1"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "-5"),
        ("OTEL_METRIC_EXPORT_TIMEOUT", "soon"),
        ("OTEL_METRICS_EXEMPLAR_FILTER", "foo"),
        ("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "foo"),
        ("OTEL_RESOURCE_ATTRIBUTES", "team=a,b"),
    ],
)
def test_what_there_is_not_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(Misconfigured, match=name):
        OtelSettings.from_environment({"OTEL_EXPORTER_OTLP_ENDPOINT": COLLECTOR, name: value})


@pytest.mark.parametrize("argument", ["abc", "1.5", "-0.1", "nan"])
def test_a_sampler_of_a_ratio_wants_one_from_0_to_1(argument: str) -> None:
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": COLLECTOR,
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": argument,
    }
    with pytest.raises(Misconfigured, match="OTEL_TRACES_SAMPLER_ARG"):
        OtelSettings.from_environment(environment)
    OtelSettings.from_environment(environment | {"OTEL_TRACES_SAMPLER": "always_on"})


@pytest.mark.parametrize(
    "environment",
    [
        {"OTEL_TRACES_EXPORTER": "none", "OTEL_BSP_MAX_QUEUE_SIZE": "abc"},
        {"OTEL_SDK_DISABLED": "true", "OTEL_METRICS_EXEMPLAR_FILTER": "foo"},
        {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.1"},
        {"OTEL_EXPORTER_OTLP_COMPRESSION": "gzip", "OTEL_EXPORTER_OTLP_TIMEOUT": "2.5"},
        {"OTEL_BSP_MAX_QUEUE_SIZE": "512", "OTEL_SPAN_EVENT_COUNT_LIMIT": ""},
        {"OTEL_EXPORTER_OTLP_CERTIFICATE": __file__, "OTEL_RESOURCE_ATTRIBUTES": "a=b,"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "", "OTEL_TRACES_SAMPLER": "foo"},
    ],
)
def test_what_can_be_used_or_is_not_used_is_let_pass(environment: dict[str, str]) -> None:
    OtelSettings.from_environment({"OTEL_EXPORTER_OTLP_ENDPOINT": COLLECTOR} | environment)


@pytest.mark.parametrize(
    "header",
    [
        "x-team: pa55",
        "x-team=pa55;word",
        'x-key="pa55"',
        "pa55",
        "x-team=a%0Apa55",
        "'x-key=pa55",
        "x-key=pa55%C3%A9",
    ],
)
def test_a_header_that_would_be_left_out_is_refused_and_not_shown(
    header: str, caplog: pytest.LogCaptureFixture
) -> None:
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": COLLECTOR,
        "OTEL_EXPORTER_OTLP_HEADERS": f"a=b,{header}",
    }
    with pytest.raises(Misconfigured, match="OTEL_EXPORTER_OTLP_HEADERS: header 2 of 2") as raised:
        OtelSettings.from_environment(environment)
    assert "pa55" not in str(raised.value) + caplog.text
