"""What a story says of causes, reasons and repetitions, and what it leaves unsaid."""

import asyncio

import httpx

from infra.database import Database
from infra.queue.protocol import ClaimedInput
from schema.outcome import Outcome, Refused, Skipped
from tests.integration.api.conftest import notes
from tests.integration.api.stories import run, timeline, told, types
from tests.integration.api.working import Work, dies, fails, submit, succeeds


async def test_what_is_due_waits_for_the_relay_or_for_a_consumer(
    client: httpx.AsyncClient, database: Database, database_url: str
) -> None:
    job = await submit(client, notes(2))
    waits = "2 inputs of 0 to 1: due: waits for"
    for by_relay, who in ((True, "the relay"), (False, "a consumer")):
        _, text = await told(database, job, by_relay=by_relay)
        assert text.splitlines()[-1].endswith(f"{waits} {who}")
    shown = await asyncio.to_thread(run, database_url, job, CONSUMER_MODE="sqs-consumer")
    assert shown.stdout.endswith("waits for the relay\n")


async def test_what_nobody_works_on_says_so_in_the_timeline_and_in_the_terminal(
    client: httpx.AsyncClient, work: Work, database: Database
) -> None:
    job = await submit(client, notes(2))
    assert "because" not in (await timeline(client, job))["items"][-1]
    await work.rows("UPDATE job SET requested_at = now() - interval '1 hour' RETURNING id")
    await work.rows("UPDATE outbox SET available_at = now() - interval '31 seconds' RETURNING id")
    because = (await client.get(f"/jobs/{job}/inputs/0")).json()["next"]["because"]
    assert because.startswith("no consumer works on kind 'note' now")
    for ordinal in (None, 0):
        query = {} if ordinal is None else {"ordinal": ordinal}
        assert (await timeline(client, job, **query))["items"][-1]["because"] == because
        _, text = await told(database, job, ordinal=ordinal)
        assert text.endswith(f"due: waits for a consumer; {because}\n")
    await work.rows("UPDATE outbox SET state = 'SENT', sent_at = now() RETURNING id")
    _, text = await told(database, job, ordinal=0, by_relay=True)
    assert text.endswith(f"sent to the queue; {because}\n")
    # Whoever works on another input of the kind may come to this one.
    await submit(client, notes(1))
    await work.claim(most=1)
    assert "because" not in (await timeline(client, job))["items"][-1]


async def test_no_text_of_a_processor_steers_the_terminal(
    client: httpx.AsyncClient, work: Work, database: Database
) -> None:
    job = await submit(client, notes(1))
    await work.run(lambda _: Refused("\x1b[2JBoom\n\x9b", "\x1b[2J it\nbroke \x9b"))
    _, text = await told(database, job)
    assert "Boom" in text
    assert all(character.isprintable() for character in text.replace("\n", ""))
    assert not [line for line in text.splitlines() if line.startswith("broke")]


async def test_why_a_job_failed_is_told_and_not_to_inputs_that_had_no_part_in_it(
    client: httpx.AsyncClient, work: Work, database: Database
) -> None:
    def say(input_: ClaimedInput) -> Outcome:
        return dies(input_) if input_.ordinal == 2 else succeeds(input_)

    job = await submit(client, notes(3))
    await work.run(say)
    for ordinal, why in (
        (None, "an input died: it broke"),
        (2, "an input died: it broke"),
        (0, None),
    ):
        query = {} if ordinal is None else {"ordinal": ordinal}
        finished = (await timeline(client, job, **query))["items"][-1]
        assert (finished["type"], finished["outcome"]) == ("job.finished", "FAILED")
        assert finished.get("because") == why
        _, text = await told(database, job, ordinal=ordinal)
        assert ("an input died" in text) == (why is not None)


async def test_a_job_that_was_cancelled_did_not_end_for_an_error_of_an_input(
    client: httpx.AsyncClient, work: Work, database: Database
) -> None:
    job = await submit(client, notes(200))
    claims = await work.claim(most=1)
    await work.settle(claims, dies)
    await client.post(f"/jobs/{job}/cancel")
    await work.sweep()
    assert (await client.get(f"/jobs/{job}")).json()["errorMessage"] is not None
    (finished,) = [
        step for step in (await timeline(client, job))["items"] if step["type"] == "job.finished"
    ]
    assert finished["outcome"] == "CANCELLED"
    assert "because" not in finished
    _, text = await told(database, job)
    assert "finished: CANCELLED\n" in text


async def test_what_was_skipped_has_a_reason_and_no_error(
    client: httpx.AsyncClient, work: Work, database: Database
) -> None:
    job = await submit(client, notes(1))
    await work.run(lambda _: Skipped("nothing to do"))
    (content,) = (await client.get(f"/jobs/{job}")).json()["dataContent"]
    assert (content["status"], content["reason"]) == ("SKIPPED", "nothing to do")
    assert "error" not in content
    for address in (f"/jobs/{job}/inputs/0", f"/jobs/{job}/inputs"):
        document = (await client.get(address)).json()
        input_ = document["items"][0] if "items" in document else document
        assert (input_["error"], input_["reason"]) == (None, "nothing to do")
    settled = (await timeline(client, job))["items"][-2]
    assert (settled["outcome"], settled["because"]) == ("SKIPPED", "nothing to do")
    assert "error" not in settled
    _, text = await told(database, job)
    assert "SKIPPED after a run of 7 ms: nothing to do\n" in text


async def test_an_input_is_settled_when_it_is_final(client: httpx.AsyncClient, work: Work) -> None:
    job = await submit(client, notes(1) | {"policy": {"maxAttempts": 2}})
    (claim,) = await work.claim()
    await work.settle([claim], fails)
    for address in (f"/jobs/{job}/inputs/0", f"/jobs/{job}/inputs"):
        document = (await client.get(address)).json()
        input_ = document["items"][0] if "items" in document else document
        assert (input_["status"], input_["settledAt"]) == ("RETRY_WAIT", None)
    await work.run(fails)
    assert (await client.get(f"/jobs/{job}/inputs/0")).json()["settledAt"] is not None


async def test_lines_that_say_the_same_in_a_row_are_one_with_their_number(
    client: httpx.AsyncClient, work: Work, database: Database
) -> None:
    job = await submit(client, notes(1))
    for _ in range(3):
        await client.post(f"/jobs/{job}/cancel")
        await work.sweep()
        await client.post(f"/jobs/{job}/reprocess", json={"statuses": ["CANCELLED"]})
    assert types(await timeline(client, job)).count("redrive.requested") == 3
    _, text = await told(database, job)
    (line,) = [line for line in text.splitlines() if "redriven" in line]
    assert "redriven by acme: 1 input (DONE) (3 times, the last at 2" in line
