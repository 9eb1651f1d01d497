"""How long one input takes at low load, from the request to its outcome."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from functools import partial
from typing import TYPE_CHECKING

from tests.benchmarks import bare
from tests.benchmarks.bare_loop import CHANNEL
from tests.benchmarks.contest import Rival, Sample, compete
from tests.benchmarks.http_load import post, post_paced
from tests.benchmarks.jobs import all_ended, clear
from tests.platform import eventually

if TYPE_CHECKING:
    from collections.abc import Sequence

    import asyncpg

    from tests.benchmarks.contest import Table
    from tests.benchmarks.stage import Place, Stage

INTERVAL_SECONDS = 0.05
P99 = "p99 ms"
STORED_P50 = "from its transaction, p50 ms"
HTTP_P50, HTTP_P99 = "HTTP answer p50 ms", "HTTP answer p99 ms"
_BASELINE = "bare asyncpg loop with NOTIFY"
_SETTLED = """
SELECT j.key, extract(epoch FROM j.requested_at) AS stored_at,
       extract(epoch FROM i.settled_at) AS settled_at
FROM input i JOIN job j ON j.id = i.job_id
"""
_DONE = """
SELECT extract(epoch FROM created_at) AS stored_at, extract(epoch FROM done_at) AS settled_at
FROM bare_job ORDER BY id
"""
_OPEN = "SELECT count(*) FROM bare_job WHERE state <> 'done'"
_BODY = json.dumps({"n": 1, "text": "abcdefghijklmnopqrstuvwxyz0123456789"})


async def contest(stage: Stage, *, rounds: int, samples: int) -> Table:
    """Send one input every 50 ms."""
    rivals: list[Rival] = []
    places: list[Place] = []
    for label, mode in (("outbox", "outbox"), ("SQS", "sqs-consumer")):
        place = await stage.place(f"latency_{label.lower()}", mode=mode)
        places.append(place)
        for module in ("api", "dispatcher", "consumer"):
            stage.run(place, module)
        key = stage.api_key(place)
        rivals.append(Rival(f"Haulage, {label}", partial(_product, place, key, samples)))
    loop_place = await bare.bare_place(stage, "latency_bare")
    rivals.append(Rival(_BASELINE, partial(_bare, loop_place, samples)))
    try:
        return await compete(
            "Latency at low load",
            "ms (p50)",
            rivals,
            rounds=rounds,
            baseline=_BASELINE,
            less_is_better=True,
            notes=[
                (
                    f"{rounds} rounds of {samples} inputs, {INTERVAL_SECONDS * 1000:.0f} ms apart;"
                    " less is better. Settings are the defaults."
                ),
                (
                    "From the client's sending of the request to the transaction that settles the"
                    " input, by the one clock of the machine. So it is of the transaction that"
                    " stores the job. The answer to the request is timed at the client."
                ),
                (
                    "The bare loop's input is a row and a NOTIFY, without HTTP: from its client's"
                    " sending of the INSERT to the transaction that completes it."
                ),
            ],
        )
    finally:
        for place in places:
            stage.stop(place)


async def _product(place: Place, key: str, samples: int) -> Sample:
    await clear(place)
    request = post("/jobs", key, f'{{"kind":"noop","inputs":[{_BODY}]}}'.encode())
    answers = await post_paced(
        place.environment["HAULAGE_URL"], [request] * samples, interval_seconds=INTERVAL_SECONDS
    )
    await eventually(partial(all_ended, place))
    rows = {row["key"]: row for row in await place.connection.fetch(_SETTLED)}
    assert len(rows) == samples, (len(rows), samples)
    times = [(answer.sent_at, rows[json.loads(answer.body)["jobId"]]) for answer in answers]
    answered = [answer.milliseconds for answer in answers]
    sample = _sample(times)
    http = {HTTP_P50: statistics.median(answered), HTTP_P99: percentile(answered, 0.99)}
    return Sample(sample.figure, {**sample.costs, **http})


def _sample(times: Sequence[tuple[float, asyncpg.Record]]) -> Sample:
    """Make a sample of when each input was sent, and the row that says the rest."""
    took = [(float(row["settled_at"]) - sent_at) * 1000 for sent_at, row in times]
    stored = [float(row["settled_at"] - row["stored_at"]) * 1000 for _, row in times]
    costs = {P99: percentile(took, 0.99), STORED_P50: statistics.median(stored)}
    return Sample(statistics.median(took), costs)


async def _bare(place: Place, samples: int) -> Sample:
    await place.connection.execute("TRUNCATE bare_job")
    await place.connection.execute("CHECKPOINT")
    loop = await bare.start(place, "listen")
    sent_at = []
    for _ in range(samples):
        sent_at.append(time.time())
        await place.connection.execute("INSERT INTO bare_job (body) VALUES ($1)", _BODY)
        await place.connection.execute(f"NOTIFY {CHANNEL}")
        await asyncio.sleep(INTERVAL_SECONDS)
    await eventually(partial(_bare_is_done, place))
    await bare.stop([loop])
    rows = await place.connection.fetch(_DONE)
    return _sample(list(zip(sent_at, rows, strict=True)))


async def _bare_is_done(place: Place) -> bool:
    return not await place.connection.fetchval(_OPEN)


def percentile(values: Sequence[float], share: float) -> float:
    """Give the value that this share of all values does not exceed."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]
