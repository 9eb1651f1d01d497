"""What must hold after each step, found by other means than the product's own doctor.

A snapshot is compared with the one before it: that a state is sound says little of how it came
about.
"""

import datetime as dt
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Interval, bindparam, text

from infra.database import Database
from schema.statements.claim import REPAIRING
from tests.simulation.work import token_of

Key = tuple[UUID, int]
_UNFINISHED = {"PENDING", "RETRY_WAIT"}
_ENDED = {"COMPLETED", "FAILED", "CANCELLED", "EXPIRED"}
_MAY_BE_REDRIVEN = {"DLQ", "NOT_FOUND", "CANCELLED", "EXPIRED"}
_SUCCESSES = {"SUCCEEDED", "SKIPPED"}
# What dies of these may have had attempts left.
_REFUSALS = {"InvalidInput", "BadOutcome"}
_OUTCOME = ("result", "reused", "elapsed_ms", "error_class", "error_message", "settled_at")
_COUNTERS = ("succeeded", "skipped", "not_found", "dlq", "cancelled", "expired")
# When an input was settled is given as if no clock had been moved, so that it can be compared.
_READ = text(
    """
SELECT json_build_array((SELECT json_agg(j) FROM (
           SELECT j.*, j.expires_at <= now() AS is_past FROM job j) j),
       (SELECT json_agg(to_jsonb(i) || jsonb_build_object(
           'settled_at', i.settled_at + CAST(:moved AS interval))) FROM input i),
       (SELECT json_agg(o) FROM (
           SELECT o.*, o.locked_until > now() AS is_locked, o.available_at <= now() AS is_due
           FROM outbox o) o),
       (SELECT json_agg(a) FROM attempt a), (SELECT json_agg(d) FROM dead_letter d),
       (SELECT json_agg(r) FROM redrive r), (SELECT json_agg(p) FROM parked_message p))::text
"""
)


@dataclass(frozen=True)
class Snapshot:
    """All rows, by their keys, as they stand between two steps; ``text`` is as they were read.

    ``repairs`` are claims, by entry and epoch, that were taken over when their leases had lapsed:
    they stay in the name of whoever lost them.
    """

    text: str
    jobs: dict[UUID, Any]
    inputs: dict[Key, Any]
    entries: dict[int, Any]
    attempts: list[Any]
    letters: list[Any]
    redrives: dict[UUID, Any]
    parked: list[Any]
    repairs: frozenset[tuple[int, int]] = frozenset()


NOTHING = Snapshot("", {}, {}, {}, [], [], {}, [])


async def read(database: Database, before: Snapshot, *, moved_seconds: float) -> Snapshot:
    """Read everything; give ``before`` itself where nothing has changed.

    ``moved_seconds`` is how far all times were moved back since the beginning.
    """
    moved = bindparam("moved", dt.timedelta(seconds=moved_seconds), Interval)
    written: str = (await database.fetch(_READ.bindparams(moved)))[0][0]
    if written == before.text:
        return before
    jobs, inputs, entries, attempts, letters, redrives, parked = (
        rows or [] for rows in json.loads(written)
    )
    by_id = {entry["id"]: entry for entry in entries}
    return Snapshot(
        written,
        {UUID(job["id"]): job for job in jobs},
        {_key(input_): input_ for input_ in inputs},
        by_id,
        attempts,
        letters,
        {UUID(redrive["id"]): redrive for redrive in redrives},
        parked,
        before.repairs
        | {
            (id_, entry["epoch"])
            for id_, entry in by_id.items()
            if _is_taken_over(before.entries.get(id_), entry)
        },
    )


def _is_taken_over(old: Any, new: Any) -> bool:
    if old is None or old["state"] != "CLAIMED" or new["state"] != "CLAIMED":
        return False
    lost_by = str(old["locked_by"]).removeprefix(REPAIRING)
    return bool(new["epoch"] > old["epoch"] and new["locked_by"] == REPAIRING + lost_by)


def check(before: Snapshot, after: Snapshot, *, claims: Mapping[int, tuple[int, int]]) -> None:
    """Assert what holds of every state, and of every change from one to the next.

    ``claims`` says for each token under which (entry, epoch) its work was done.
    """
    _check_names(after)
    _check_counters(after)
    _check_attempts(after)
    _check_correlation(after)
    _check_jobs(before, after)
    _check_claims(before, after)
    _check_drained(before, after)
    for key, old in before.inputs.items():
        assert key in after.inputs, f"the input is gone: {old}"
        _check_input(key, old, before, after, claims)


def _check_names(now: Snapshot) -> None:
    """Every unfinished input is named by the one live entry that counts it."""
    named: Counter[int] = Counter()
    for (job_id, ordinal), input_ in now.inputs.items():
        if input_["status"] not in _UNFINISHED:
            assert input_["entry_id"] is None, f"a final input is named: {input_}"
            continue
        entry = now.entries.get(input_["entry_id"])
        assert entry is not None, f"nothing names {input_}"
        assert entry["type"] == "inputs", entry
        assert UUID(entry["job_id"]) == job_id, (entry, input_)
        assert entry["first_ordinal"] <= ordinal <= entry["last_ordinal"], (entry, input_)
        named[entry["id"]] += 1
    for entry in now.entries.values():
        if entry["type"] == "inputs":
            assert entry["unfinished"] == named[entry["id"]] > 0, (entry, named[entry["id"]])
            assert entry["state"] != "PARKED", entry


def _check_counters(now: Snapshot) -> None:
    rows: dict[UUID, Counter[str]] = defaultdict(Counter)
    for (job_id, _), input_ in now.inputs.items():
        rows[job_id][input_["status"].lower()] += 1
        rows[job_id]["files_generated"] += input_["reused"] is False
        rows[job_id]["files_reused"] += input_["reused"] is True
    for job_id, job in now.jobs.items():
        counted = {name: job[name] for name in (*_COUNTERS, "files_generated", "files_reused")}
        assert counted == {name: rows[job_id][name] for name in counted}, (job, rows[job_id])
        final = sum(job[name] for name in _COUNTERS)
        unfinished = sum(rows[job_id][status.lower()] for status in _UNFINISHED)
        assert final + unfinished == job["total"], (job, rows[job_id])
        assert (job["finished_at"] is not None) == (job["status"] in _ENDED), job
        if job["status"] == "COMPLETED":
            assert final == job["total"], job
            assert not job["dlq"], job
        if job["status"] == "FAILED":
            assert job["dlq"], job


def _check_attempts(now: Snapshot) -> None:
    """What failed was written down, each attempt once; each generation has its own attempts."""
    kept: Counter[tuple[Key, int]] = Counter()
    for attempt in now.attempts:
        kept[_key(attempt), attempt["generation"]] += 1
    letters = Counter(_key(letter) for letter in now.letters)
    for key, input_ in now.inputs.items():
        most = now.jobs[key[0]]["max_attempts"]
        failed = input_["attempts"] - (input_["status"] in _SUCCESSES)
        assert kept[key, input_["generation"]] == failed, (input_, kept[key, input_["generation"]])
        assert input_["attempts"] <= most, input_
        if input_["status"] == "DLQ" and input_["error_class"] not in _REFUSALS:
            assert input_["attempts"] == most, f"it had attempts left: {input_}"
        assert letters[key] == (input_["status"] == "DLQ"), (input_, letters[key])


def _check_correlation(now: Snapshot) -> None:
    for row in (*now.entries.values(), *now.letters):
        job = now.jobs[UUID(row["job_id"])]
        assert row["correlation_id"] == job["correlation_id"], (row, job)


def _check_jobs(before: Snapshot, after: Snapshot) -> None:
    """A job that has ended stays as it ended, unless somebody redrives inputs of it."""
    redriven = _redriven_jobs(before, after)
    for job_id, old in before.jobs.items():
        new = after.jobs.get(job_id)
        assert new is not None, f"the job is gone: {old}"
        if old["status"] in _ENDED and new["status"] != old["status"]:
            assert job_id in redriven, f"{old['status']} is not final: {new}"
        assert old["correlation_id"] == new["correlation_id"], (old, new)


def _check_claims(before: Snapshot, after: Snapshot) -> None:
    """Consumers are given what is due, of jobs that are active: a pause holds from its commit."""
    for entry in after.entries.values():
        old = before.entries.get(entry["id"])
        is_new = old is None or old["epoch"] < entry["epoch"]
        is_repair = (entry["id"], entry["epoch"]) in after.repairs
        if is_new and entry["state"] == "CLAIMED" and not is_repair:
            job = before.jobs[UUID(entry["job_id"])]
            assert job["status"] in ("SUBMITTED", "RUNNING"), (entry, job)
            assert not job["is_past"], (entry, job)
            assert entry["is_due"], entry


def _check_drained(before: Snapshot, after: Snapshot) -> None:
    """A message that was found dead says that what waited for it is due again at once."""
    known = {message["id"]: message for message in before.parked}
    for message in after.parked:
        if message["resolution"] is None or message == known.get(message["id"]):
            continue
        old, new = (now.entries.get(message["entry_id"]) for now in (before, after))
        assert message["resolution"] != "settled" or new is None, (message, new)
        if old and new and old["state"] == new["state"] == "SENT":
            # It was sent anew in the same step, or nobody will hear of it.
            assert old["sent_at"] != new["sent_at"], f"it waits for a dead message: {new}"


def _redriven_jobs(before: Snapshot, after: Snapshot) -> set[UUID]:
    return {
        key[0]
        for key, new in after.inputs.items()
        if key in before.inputs and new["generation"] > before.inputs[key]["generation"]
    }


def _check_input(
    key: Key,
    old: Any,
    before: Snapshot,
    after: Snapshot,
    claims: Mapping[int, tuple[int, int]],
) -> None:
    new = after.inputs[key]
    if new["generation"] != old["generation"]:
        assert new["generation"] == old["generation"] + 1, (old, new)
        assert new["attempts"] == 0, f"redriven, but not from the beginning: {new}"
        assert _was_asked_for(key, after.redrives.values()), f"nobody redrove {new}"
        # It may have been swept in the same step that redrove it.
        ended = {**old, "status": "CANCELLED"} if old["status"] in _UNFINISHED else old
        assert ended["status"] in _MAY_BE_REDRIVEN, (old, new)
        return
    if old["status"] not in _UNFINISHED:
        assert new == old, f"an outcome is final: {old} became {new}"
        return
    assert new["attempts"] >= old["attempts"], (old, new)
    if new["attempts"] == old["attempts"]:
        if new["status"] == old["status"]:
            assert _outcome(new) == _outcome(old), f"written twice: {old} became {new}"
        else:
            assert new["status"] in {"CANCELLED", "EXPIRED"}, (old, new)
        return
    # Something was accepted: from whoever held the claim, and from nobody else.
    assert new["attempts"] == old["attempts"] + 1, f"two attempts in one step: {old}, {new}"
    entry = before.entries[old["entry_id"]]
    assert entry["state"] == "CLAIMED", (entry, new)
    if new["error_class"] == "WorkerLost":
        # Time does pass while a step is taken, if only little.
        has_ended = dt.datetime.fromisoformat(entry["locked_until"]) <= dt.datetime.now(dt.UTC)
        is_taken_over = (entry["id"], entry["epoch"]) in before.repairs
        assert has_ended or is_taken_over, f"its lease was alive: {entry}"
        return
    token = token_of(new["result"], new["error_message"])
    if token is not None:
        assert claims[token] == (entry["id"], entry["epoch"]), (claims[token], entry, new)
        assert entry["is_locked"], f"its lease had ended: {entry}"


def _outcome(input_: Any) -> list[Any]:
    return [input_[name] for name in _OUTCOME]


def _was_asked_for(key: Key, redrives: Iterable[Any]) -> bool:
    return any(
        redrive["source"] == "dlq" or redrive["filter"]["job"] == str(key[0])
        for redrive in redrives
    )


def check_deliveries(
    now: Snapshot, *, in_queue: set[int], lost: set[int], drained: set[int]
) -> None:
    """A message stays until its inputs are settled, or the entry is to be sent again.

    From the DLQ it goes earlier, once the entry was found in somebody's hands.
    """
    for entry in now.entries.values():
        if entry["type"] == "inputs" and entry["state"] in ("SENT", "CLAIMED"):
            held = drained if entry["state"] == "CLAIMED" else set()
            is_there = entry["id"] in in_queue | lost | held
            assert is_there, f"its message was deleted too early: {entry}"


def check_message(body: str, attributes: Mapping[str, Any], now: Snapshot) -> None:
    """What travels carries the correlation id of its job."""
    job = now.jobs.get(UUID(json.loads(body)["job"]))
    if job is not None:
        sent = attributes["correlation_id"]["StringValue"]
        assert sent == job["correlation_id"], (body, sent, job)


def _key(row: Any) -> Key:
    return UUID(row["job_id"]), row["ordinal"]
