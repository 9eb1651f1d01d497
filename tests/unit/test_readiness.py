"""Readiness is answered in time, whatever the neighbours do."""

import asyncio
import json

from starlette.requests import Request
from structlog.testing import capture_logs

from infra.http import Health
from schema.errors import Unavailable


async def test_a_check_that_cannot_even_be_given_up_does_not_hold_up_the_answer() -> None:
    """As a driver that waits for a silent server to confirm that it may stop waiting."""
    gone = asyncio.Event()

    async def silent() -> None:
        try:
            await gone.wait()
        finally:
            await gone.wait()

    async def sound() -> None:
        return

    async def away() -> None:
        raise Unavailable("storage is away: refused")

    health = Health(60, checks={"database": silent, "queue": sound, "storage": away})
    answer = await health.readyz(Request({"type": "http"}))
    gone.set()
    assert answer.status_code == 503
    assert json.loads(bytes(answer.body))["checks"] == {
        "database": "no answer within 3 s",
        "queue": "ok",
        "storage": "storage is away: refused",
    }


async def test_a_check_that_fails_for_no_known_reason_is_an_answer_and_is_told_of_once() -> None:
    async def broken() -> None:
        raise KeyError("nobody foresaw this")

    health = Health(60, checks={"migrations": broken})
    with capture_logs() as lines:
        answers = [await health.readyz(Request({"type": "http"})) for _ in range(3)]
    assert {answer.status_code for answer in answers} == {503}
    assert json.loads(bytes(answers[0].body))["checks"] == {"migrations": "failed: KeyError"}
    assert [(line["event"], line["check"]) for line in lines] == [
        ("health.check_failed", "migrations")
    ]
