"""Of what went well, the lines of whole jobs are written or none; failures always are."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from structlog import DropEvent

from infra.sampling import Sample

CHECKOUT = Path(__file__).resolve().parents[2]
LOGGING = """
import asyncio, sys
import structlog
from infra.process import run

log = structlog.get_logger("sampled")

async def serve(settings, worker, stop):
    for number in range(200):
        with structlog.contextvars.bound_contextvars(correlation_id=f"c{number}"):
            log.info("entry.done", ended="settled")
            log.info("relay.sent")
            log.warning("input.failed")

sys.exit(run(sys.argv[1], serve))
"""


def kept(sample: Sample, **event: Any) -> bool:
    try:
        return sample(None, "", {"level": "info", "event": "entry.done", **event}) is not None
    except DropEvent:
        return False


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_the_share_is_that_of_the_correlation_ids(share: float) -> None:
    taken = sum(Sample(share).takes(f"order-{number}") for number in range(10_000))
    assert taken == pytest.approx(share * 10_000, abs=200)
    assert share not in {0.0, 1.0} or taken == share * 10_000


def test_a_larger_sample_holds_the_smaller_one() -> None:
    ids = [f"order-{number}" for number in range(1_000)]
    small, large = ({i for i in ids if Sample(share).takes(i)} for share in (0.1, 0.2))
    assert small < large


@pytest.mark.parametrize(
    "event",
    [
        {"level": "warning"},
        {"level": "error"},
        {"ended": "lost"},
        {"ended": "abandoned"},
        {"event": "http.request", "status": 404},
        {"event": "http.request", "status": 503},
        {"event": "http.request", "status": None},
    ],
)
def test_a_failure_is_always_written(event: dict[str, Any]) -> None:
    assert kept(Sample(0.0), correlation_id="c", **event)


@pytest.mark.parametrize(
    ("method", "route", "is_written"),
    [
        ("POST", "/jobs/{jobId}/cancel", True),
        ("POST", "/jobs/{jobId}/reprocess", True),
        ("POST", "/dlq/reprocess", True),
        ("POST", "/jobs", False),
        ("GET", "/jobs/{jobId}", False),
        ("HEAD", "/jobs/{jobId}", False),
        ("OPTIONS", "/jobs/{jobId}/cancel", False),
    ],
)
def test_who_changed_a_job_is_written_whatever_id_the_request_had(
    method: str, route: str, is_written: bool
) -> None:
    request = {"event": "http.request", "status": 200, "method": method, "route": route}
    assert kept(Sample(0.0), correlation_id="c", **request) == is_written


def test_what_is_about_no_request_is_always_written() -> None:
    assert kept(Sample(0.0), event="process.started")


@pytest.mark.parametrize(
    "event",
    [
        {"ended": "settled"},
        {"ended": "released"},
        {"event": "http.request", "status": 202, "method": "POST", "route": "/jobs"},
        {"event": "sweeper.swept", "status": "CANCELLED"},
        {"level": "debug", "event": "input.not_found"},
    ],
)
def test_a_success_outside_the_sample_is_dropped(event: dict[str, Any]) -> None:
    assert not kept(Sample(0.0), correlation_id="c", **event)
    assert kept(Sample(1.0), correlation_id="c", **event)


def test_every_process_writes_all_lines_of_the_same_ids() -> None:
    lines: dict[str, list[dict[str, Any]]] = {}
    for process in ("api", "consumer"):
        ended = subprocess.run(
            [sys.executable, "-c", LOGGING, process],
            cwd=CHECKOUT,
            env={
                **os.environ,
                "DATABASE_URL": "postgresql://x",
                "CONSUMER_MODE": "outbox",
                "HAULAGE_LOG_FORMAT": "json",
                "HAULAGE_LOG_SUCCESS_SAMPLE": "0.3",
            },
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        lines[process] = [json.loads(line) for line in ended.stderr.splitlines()]
    ids = {
        (process, event): {line["correlation_id"] for line in told if line["event"] == event}
        for process, told in lines.items()
        for event in ("entry.done", "relay.sent", "input.failed")
    }
    wanted = {f"c{n}" for n in range(200) if Sample(0.3).takes(f"c{n}")}
    assert 30 < len(wanted) < 90
    for process in lines:
        assert ids[process, "entry.done"] == ids[process, "relay.sent"] == wanted
        assert len(ids[process, "input.failed"]) == 200
