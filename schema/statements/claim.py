"""Statements by which a consumer takes, keeps and gives back the lease of an outbox entry."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from schema.statements.batch import NOT_SHUNNED, Batch, entry_forms
from schema.statements.bound import A_MOMENT, Bound
from schema.statements.locks import BRIEFLY, lock_timeout
from schema.statements.turns import (
    CLAIMABLE,
    FIRST_TO_CLAIM,
    FIRST_TURN,
    FREE,
    IN_TURN,
    PICKED_IDS,
    PICKED_TO_CLAIM,
    READY,
    RUNNABLE,
    Turn,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from uuid import UUID

    from sqlalchemy.sql.elements import TextClause

# Behind it stands who lost an entry, and is charged however often a repair is begun. It is not in
# that worker's own name: one that lives would take it for its own.
REPAIRING = "reaper of "

# What every way of claiming shares: raise the epoch, start the job, hand over the inputs.
# An input belongs to the entry whose id it carries, wherever in the range it stands.
_TAKE = """
), claimed AS (
    UPDATE outbox o
    SET state = 'CLAIMED', epoch = o.epoch + 1, locked_by = target.holder,
        locked_until = now() + CAST(:lease_seconds AS double precision) * interval '1 second',
        sent_at = NULL, resends = 0
    FROM target WHERE o.id = target.id
    RETURNING o.id, o.epoch, o.job_id, o.kind, o.owner_id, o.locked_by, o.correlation_id,
              o.traceparent, o.tracestate, o.baggage, o.origin, o.first_ordinal, o.last_ordinal,
              o.priority, o.turn_at, target.waited_ms,
              extract(epoch FROM now() - target.was_sent_at) * 1000 AS queued_ms
), started AS (
    UPDATE job SET status = CASE status WHEN 'SUBMITTED' THEN 'RUNNING' ELSE status END,
                   started_at = now()
    WHERE id IN (SELECT job_id FROM claimed) AND started_at IS NULL
)
SELECT o.id AS entry_id, o.epoch, o.job_id, o.kind, o.owner_id, o.waited_ms, o.locked_by AS worker,
       o.correlation_id, o.traceparent, o.tracestate, o.baggage, o.origin, o.queued_ms,
       extract(epoch FROM now() - coalesce(j.scheduled_for, j.requested_at)) * 1000 AS due_ms,
       j.key AS job_key, j.request_date, j.options::text AS options, j.max_attempts,
       i.ordinals, i.bodies, i.attempts, i.generations"""
_HAND_OVER = """
FROM claimed o
JOIN job j ON j.id = o.job_id
CROSS JOIN LATERAL (
    SELECT array_agg(ordinal ORDER BY ordinal) AS ordinals,
           array_agg(body::text ORDER BY ordinal) AS bodies,
           array_agg(attempts ORDER BY ordinal) AS attempts,
           array_agg(generation ORDER BY ordinal) AS generations
    FROM input
    WHERE job_id = o.job_id AND ordinal BETWEEN o.first_ordinal AND o.last_ordinal
      AND entry_id = o.id
) i
"""

_OF_PICKED = (
    f""", target AS (
    SELECT o.id, extract(epoch FROM now() - o.available_at) * 1000 AS waited_ms,
           CAST(:worker AS text) AS holder, o.sent_at AS was_sent_at
    FROM outbox o WHERE o.id = {PICKED_IDS}"""
    + _TAKE
    + ", p.place"
    + _HAND_OVER
    + f"JOIN picked p ON p.id = o.id ORDER BY {IN_TURN}"
)
_READY = sa.text(PICKED_TO_CLAIM + _OF_PICKED)
_READY_FIRST = sa.text(FIRST_TO_CLAIM + _OF_PICKED)

# What a claim would take this moment, locked by nobody afterwards.
_IN_TURN = sa.text(
    f"""{PICKED_TO_CLAIM}
SELECT o.id, o.job_id, o.kind, o.owner_id, p.place
FROM outbox o JOIN picked p ON p.id = o.id ORDER BY {IN_TURN}"""
)

# A message proves that its entry was sent, even if the relay has not yet written it down. Where
# it is writing that down this moment, or another consumer claims, wait: what is skipped here
# would look as if there were nothing left to do. Whoever holds an entry for longer is passed over
# the next time. Only for the row of a job that has not started nobody waits, as in every claim.
_NAMED = """o.id = ANY(CAST(:entry_ids AS bigint[]))
      AND (CAST(:job_ids AS uuid[]) IS NULL OR o.job_id = ANY(CAST(:job_ids AS uuid[])))
      AND (CAST(:kinds AS text[]) IS NULL OR o.kind = ANY(CAST(:kinds AS text[])))
      AND o.state IN ('PENDING', 'SENT') AND o.type = 'inputs'"""
_TARGET_BY_ID = f"""
WITH target AS MATERIALIZED (
    SELECT o.id, extract(epoch FROM now() - o.available_at) * 1000 AS waited_ms,
           CAST(:worker AS text) AS holder, o.sent_at AS was_sent_at
    FROM outbox o
    WHERE {_NAMED} AND o.available_at <= now() AND {CLAIMABLE}
      AND {BRIEFLY}
    ORDER BY o.id
    FOR UPDATE OF o"""
_CLAIMABLE = sa.text(f"""
SELECT o.id FROM outbox o
WHERE {_NAMED} AND o.available_at <= now() AND {RUNNABLE}
""")
_BY_ID = sa.text(_TARGET_BY_ID + _TAKE + _HAND_OVER)
_FREE_BY_ID = sa.text(_TARGET_BY_ID + " SKIP LOCKED" + _TAKE + _HAND_OVER)

# What lapsed under a job that has ended is left to the sweeper: nobody's attempt is charged.
_LAPSED = entry_forms(
    f"""
    SELECT o.id, o.job_id, extract(epoch FROM now() - o.locked_until) * 1000 AS waited_ms,
           CASE WHEN starts_with(o.locked_by, '{REPAIRING}') THEN o.locked_by
                ELSE '{REPAIRING}' || o.locked_by END AS holder,
           o.sent_at AS was_sent_at
    FROM outbox o
    WHERE o.state = 'CLAIMED' AND o.locked_until < now() AND {{which}}
      AND (SELECT j.status IN ('SUBMITTED', 'RUNNING', 'PAUSED') FROM job j WHERE j.id = o.job_id)
    ORDER BY o.locked_until
    LIMIT CAST(:most AS integer)
    FOR UPDATE OF o SKIP LOCKED
""",
    "\nWITH target AS MATERIALIZED ({target}" + _TAKE + _HAND_OVER,
)

# The messages of these entries are about to be deleted: what still is to be claimed must be sent
# again, or it would wait for a message that is gone. The relay's lock goes, too, lest it writes
# down as sent what was sent before. It is sent after a moment: what kept it from being claimed,
# such as the row of its job in other hands, may last, and a message would come at once again. A
# repair takes moments, however long the reaper may take for it.
_LET_GO = sa.text(
    f"""
WITH free AS MATERIALIZED (
    SELECT id FROM outbox
    WHERE id = ANY(CAST(:entry_ids AS bigint[])) AND state IN ('PENDING', 'SENT')
      AND type = 'inputs' AND {BRIEFLY}
    ORDER BY id
    FOR UPDATE
), due_again AS (
    UPDATE outbox o
    SET state = 'PENDING', sent_at = NULL, locked_by = NULL, locked_until = NULL,
        available_at = greatest(o.available_at, now() + interval '2 seconds'), deferred = true
    FROM free WHERE o.id = free.id
)
SELECT id, epoch,
       CASE WHEN starts_with(locked_by, '{REPAIRING}') THEN 0
            ELSE greatest(0, extract(epoch FROM locked_until - now())) END AS lease_seconds
FROM outbox WHERE id = ANY(CAST(:entry_ids AS bigint[])) AND state = 'CLAIMED'
"""
)

# A row that is locked is being settled by its holder, who may have to wait for the job's row: it
# cannot be taken over meanwhile, and waiting for it would let all the other leases lapse. It is to
# be asked for again soon.
_EXTEND = sa.text(
    """
WITH asked AS MATERIALIZED (
    SELECT * FROM unnest(
        CAST(:entry_ids AS bigint[]), CAST(:epochs AS integer[]), CAST(:job_ids AS uuid[])
    ) AS h (id, epoch, job_id)
), free AS MATERIALIZED (
    SELECT o.id FROM outbox o JOIN asked h ON h.id = o.id AND h.epoch = o.epoch
    WHERE o.state = 'CLAIMED' AND o.locked_until > now()
    ORDER BY o.id
    FOR UPDATE OF o SKIP LOCKED
), extended AS (
    UPDATE outbox o
    SET locked_until = now() + CAST(:lease_seconds AS double precision) * interval '1 second'
    FROM free WHERE o.id = free.id
)
SELECT h.id, j.status AS job_status, o.id IS NOT NULL AS is_held, f.id IS NOT NULL AS is_extended
FROM asked h JOIN job j ON j.id = h.job_id
LEFT JOIN free f ON f.id = h.id
LEFT JOIN outbox o ON o.id = h.id AND o.epoch = h.epoch
    AND o.state = 'CLAIMED' AND o.locked_until > now()
"""
)

# The lock on the job makes its status the one that counts until this commits: else an entry could
# go back HELD just after the sweeper found everything in place for a resumed job.
_RELEASE = sa.text(
    f"""
WITH held AS MATERIALIZED (
    SELECT o.id, o.job_id FROM outbox o
    JOIN unnest(CAST(:entry_ids AS bigint[]), CAST(:epochs AS integer[])) AS h (id, epoch)
      ON o.id = h.id AND o.epoch = h.epoch
    WHERE o.state = 'CLAIMED' AND o.locked_until > now() AND {BRIEFLY}
    ORDER BY o.id
    FOR UPDATE OF o
), of_job AS MATERIALIZED (
    SELECT id, status FROM job WHERE id IN (SELECT job_id FROM held) ORDER BY id FOR SHARE
)
UPDATE outbox o
SET state = CASE WHEN j.status IN ('SUBMITTED', 'RUNNING') THEN 'PENDING' ELSE 'HELD' END,
    locked_by = NULL, locked_until = NULL,
    available_at = greatest(
        o.available_at,
        now() + CAST(:delay_seconds AS double precision) * interval '1 second'),
    deferred = CAST(:delay_seconds AS double precision) > 0
FROM held h JOIN of_job j ON j.id = h.job_id
WHERE o.id = h.id
RETURNING o.id, o.epoch, o.state
"""
)

_CLAIMED_BY = sa.text(
    """
SELECT o.id AS entry_id, o.epoch, o.job_id, o.kind, o.owner_id, 0 AS waited_ms,
       o.locked_by AS worker, o.correlation_id, o.traceparent, o.tracestate, o.baggage, o.origin,
       NULL AS queued_ms, 0 AS due_ms, j.key AS job_key, j.request_date,
       j.options::text AS options, j.max_attempts,
       NULL AS ordinals, NULL AS bodies, NULL AS attempts, NULL AS generations
FROM outbox o JOIN job j ON j.id = o.job_id
WHERE o.state = 'CLAIMED' AND o.locked_until > now() AND o.locked_by = :worker
"""
)

_DROP_EMPTY = sa.text(
    """
DELETE FROM outbox o
WHERE o.id = CAST(:entry_id AS bigint) AND o.epoch = CAST(:epoch AS integer)
  AND o.state = 'CLAIMED'
  AND NOT EXISTS (SELECT FROM input i WHERE i.job_id = o.job_id AND i.entry_id = o.id
                  AND i.ordinal BETWEEN o.first_ordinal AND o.last_ordinal)
RETURNING o.id
"""
)

# What is due later is looked for whatever its kind: who claims promotes it for everyone.
_NEXT_READY = sa.text(
    f"""
(
    SELECT CAST(0 AS double precision) AS seconds, false AS deferred FROM outbox o
    WHERE {READY} AND {NOT_SHUNNED} AND {FREE}
      AND (CAST(:kinds AS text[]) IS NULL OR o.kind = ANY(CAST(:kinds AS text[])))
    ORDER BY o.kind, o.owner_id LIMIT 1
) UNION ALL (
    SELECT CAST(extract(epoch FROM o.available_at - now()) AS double precision), true FROM outbox o
    WHERE o.state = 'PENDING' AND o.deferred AND {NOT_SHUNNED}
    ORDER BY o.available_at LIMIT 1
)
"""
)


def claim_ready(
    worker: str,
    lease_seconds: float,
    *,
    kinds: Sequence[str],
    most: int,
    turn: Turn = FIRST_TURN,
    shunned: Collection[UUID] = (),
) -> Bound:
    """Claim up to ``most`` ready entries of the given kinds, flow by flow after ``turn``.

    One row a claim, in turn; ``place`` is the flow's, for the next turn. Of jobs that are
    ``shunned`` none is taken.
    """
    values = _to_pick(kinds, most, turn, shunned)
    values |= {"worker": worker, "lease_seconds": lease_seconds}
    return Bound(_READY_FIRST if turn == FIRST_TURN else _READY, values, A_MOMENT)


def ready_in_turn(
    *, kinds: Sequence[str], most: int, turn: Turn, shunned: Collection[UUID]
) -> Bound:
    """Give what ``claim_ready`` would take: rows of (id, job_id, kind, owner_id, place)."""
    return Bound(_IN_TURN, _to_pick(kinds, most, turn, shunned), A_MOMENT)


def _to_pick(
    kinds: Sequence[str], most: int, turn: Turn, shunned: Collection[UUID]
) -> dict[str, object]:
    return {
        "kinds": list(kinds),
        "most": most,
        "shunned": list(shunned),
        "after_kind": turn.kind,
        "after_owner": turn.owner_id,
    }


def claim_by_id(
    worker: str,
    lease_seconds: float,
    entry_ids: Sequence[int],
    *,
    job_ids: Sequence[UUID] | None = None,
    kinds: Sequence[str] | None = None,
    lock_seconds: float | None = None,
    waits: bool = True,
) -> Bound:
    """Claim those of the named entries that are free, due and of an active job.

    ``job_ids`` and ``kinds`` say of which jobs and kinds they must be: after a database was
    restored, a message may name an entry that is another one now. One that somebody holds is
    waited for, unless it ``waits`` for none.
    """
    values = {
        "worker": worker,
        "lease_seconds": lease_seconds,
        "entry_ids": list(entry_ids),
        "job_ids": None if job_ids is None else list(job_ids),
        "kinds": None if kinds is None else list(kinds),
        "lock_timeout": lock_timeout(lock_seconds),
    }
    return Bound(_BY_ID if waits else _FREE_BY_ID, values, A_MOMENT)


def list_claimable(wanted: Mapping[int, UUID], *, kinds: Collection[str]) -> Bound:
    """Give those that ``claim_by_id`` would take, whoever has a row of theirs now: rows of (id)."""
    values = {
        "entry_ids": list(wanted),
        "job_ids": list(wanted.values()),
        "kinds": list(kinds),
    }
    return Bound(_CLAIMABLE, values, A_MOMENT)


def take_over_lapsed(lease_seconds: float, *, most: int) -> Batch:
    """Claim up to ``most`` entries whose lease ran out, so that their inputs can be charged.

    ``worker`` of a row is ``REPAIRING`` and who lost it.
    """
    return Batch.of(_LAPSED, {"lease_seconds": lease_seconds, "most": most})


def let_go_of_entries(entry_ids: Sequence[int], *, lock_seconds: float | None = None) -> Bound:
    """Let those be sent anew that nobody claimed, for messages that are deleted afterwards.

    Rows of those in hand: (id, epoch, lease_seconds), which is 0 for what is being repaired.
    """
    values = {"entry_ids": list(entry_ids), "lock_timeout": lock_timeout(lock_seconds)}
    return Bound(_LET_GO, values, A_MOMENT)


def extend_leases(
    entry_ids: Sequence[int], epochs: Sequence[int], job_ids: Sequence[UUID], lease_seconds: float
) -> Bound:
    """Extend the live leases that these epochs hold.

    Rows of (id, job_status, is_held, is_extended). It waits for nobody: a row that is locked, by a
    settle of the holder's own, stays as it is.
    """
    values = {
        "entry_ids": list(entry_ids),
        "epochs": list(epochs),
        "job_ids": list(job_ids),
        "lease_seconds": lease_seconds,
    }
    return Bound(_EXTEND, values, A_MOMENT)


def release_entries(
    entry_ids: Sequence[int],
    epochs: Sequence[int],
    delay_seconds: float,
    lock_seconds: float | None = None,
) -> Bound:
    """Give live claims back, no attempt spent: rows of (id, epoch, state).

    They are due again after ``delay_seconds``, and HELD while their job is not active.
    """
    values = {
        "entry_ids": list(entry_ids),
        "epochs": list(epochs),
        "delay_seconds": delay_seconds,
        "lock_timeout": lock_timeout(lock_seconds),
    }
    return Bound(_RELEASE, values, A_MOMENT)


def claimed_by(worker: str) -> Bound:
    """Give the live claims in a worker's name, as a claim does, but without their inputs."""
    return Bound(_CLAIMED_BY, {"worker": worker}, A_MOMENT)


def delete_empty_entry(entry_id: int, epoch: int) -> TextClause:
    """Delete a claimed entry that names no input: there is nothing left to do for it."""
    return _DROP_EMPTY.bindparams(entry_id=entry_id, epoch=epoch)


def next_ready(*, kinds: Sequence[str] | None = None, shunned: Collection[UUID] = ()) -> Bound:
    """Give the seconds until entries may be claimed: a row for those ready, one for ``deferred``.

    0 or less: there is one, which may be in other hands. No row: there is none.
    ``kinds`` narrows what is ready to these kinds; what there is of ``shunned`` jobs is left out.
    """
    values = {"kinds": None if kinds is None else list(kinds), "shunned": list(shunned)}
    return Bound(_NEXT_READY, values, A_MOMENT)
