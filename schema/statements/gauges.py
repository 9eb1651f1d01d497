"""Statements that measure the whole platform, at a cost that has a bound.

Work is counted in the small outbox, never in inputs, through the indexes of the states that count
and up to a limit. What is held or parked costs nothing, what is scheduled no more than the limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from schema.statements.turns import READY

if TYPE_CHECKING:
    from sqlalchemy.sql.elements import TextClause

# What the relay puts off is due all the same: while SQS is away nothing would ever grow old. Its
# ``available_at`` has moved by then, so it counts from its turn. One attempt under a lock is the
# first, which has put nothing off.
_IS_DUE = "(o.available_at <= now() OR o.relay_attempts > 0)"
_SINCE = """CASE WHEN o.relay_attempts > (o.locked_by IS NOT NULL)::integer
                    THEN least(o.available_at, o.turn_at) ELSE o.available_at END"""
# A limit that the planner cannot see. Where statistics know nothing yet of a flood it would take a
# large one for no limit, and read and sort all that there is.
_MOST = "(SELECT CAST(:most AS integer))"
_SENT = "o.state = 'SENT'"


def _waiting(where: str, *, order: str, unsent_since: str) -> str:
    """Add up the entries of each kind that wait in a state, no more than the limit of any."""
    return f"""
    SELECT k.name AS kind, w.entries, w.inputs, 0 AS running, w.since,
           {unsent_since} AS unsent_since, w.entries >= CAST(:most AS integer) AS is_capped
    FROM kind k CROSS JOIN LATERAL (
        SELECT count(*) AS entries, coalesce(sum(unfinished), 0) AS inputs, min(since) AS since
        FROM (SELECT o.unfinished, {_SINCE} AS since FROM outbox o
              WHERE {where} AND o.kind = k.name AND {_IS_DUE}
              ORDER BY {order} LIMIT {_MOST}) AS o
    ) w
    WHERE k.name IS NOT NULL"""


# Kinds are found as the relay finds them, from one to the next, and each is counted by itself: one
# that floods the outbox hides no other. The relay puts off for a minute or so: what it put off is
# among what is due first. A lease that lapsed makes its entry ready again. The row without a kind
# is the total: consumers work on several kinds, and count once.
#
# Entries of a kind are read in the order of their owners. Beyond the limit the oldest may be none
# of them; it is looked for among the first that were made. Of events, that with the next turn
# stands for what waits longest.
_BACKLOG = sa.text(
    f"""
WITH RECURSIVE kind AS (
    SELECT least((SELECT min(o.kind) FROM outbox o WHERE {READY}),
                 (SELECT min(o.kind) FROM outbox o WHERE {_SENT})) AS name
  UNION ALL
    SELECT least((SELECT min(o.kind) FROM outbox o WHERE {READY} AND o.kind > k.name),
                 (SELECT min(o.kind) FROM outbox o WHERE {_SENT} AND o.kind > k.name))
    FROM kind k WHERE k.name IS NOT NULL
), deferred AS MATERIALIZED (
    SELECT o.kind, o.unfinished, {_SINCE} AS since
    FROM (SELECT kind, unfinished, available_at, turn_at, relay_attempts, locked_by
          FROM outbox WHERE state = 'PENDING' AND deferred
          ORDER BY available_at LIMIT {_MOST}) AS o
    WHERE {_IS_DUE}
), claimed AS MATERIALIZED (
    SELECT kind, unfinished, locked_by, locked_until, locked_until > now() AS is_live
    FROM outbox WHERE state = 'CLAIMED'
    ORDER BY locked_until DESC LIMIT {_MOST}
), work AS MATERIALIZED (
{_waiting(READY, order="o.owner_id", unsent_since="w.since")}
  UNION ALL
{_waiting(_SENT, order="o.sent_at", unsent_since="NULL")}
  UNION ALL
    SELECT kind, count(*), sum(unfinished), 0, min(since), min(since),
           (SELECT count(*) FROM deferred) >= CAST(:most AS integer)
    FROM deferred GROUP BY kind
  UNION ALL
    SELECT kind, count(*) FILTER (WHERE NOT is_live),
           coalesce(sum(unfinished) FILTER (WHERE NOT is_live), 0),
           coalesce(sum(unfinished) FILTER (WHERE is_live), 0),
           min(locked_until) FILTER (WHERE NOT is_live), NULL,
           (SELECT count(*) FROM claimed) >= CAST(:most AS integer)
    FROM claimed GROUP BY kind
), first AS MATERIALIZED (
    SELECT min(since) AS since, min(since) FILTER (WHERE state = 'PENDING') AS unsent_since
    FROM (SELECT o.state, {_SINCE} AS since
          FROM (SELECT type, state, available_at, turn_at, relay_attempts, locked_by
                FROM outbox ORDER BY id LIMIT {_MOST}) AS o
          WHERE o.type = 'inputs' AND o.state IN ('PENDING', 'SENT') AND {_IS_DUE}) AS o
    WHERE EXISTS (SELECT FROM work WHERE is_capped)
), event AS MATERIALIZED (
    SELECT {_SINCE} AS since FROM outbox o
    WHERE o.state = 'PENDING' AND o.type = 'event' AND {_IS_DUE}
    ORDER BY o.priority DESC, o.available_at, o.id
    LIMIT 1
), total AS MATERIALIZED (
    SELECT bool_or(is_capped) AS is_capped,
           (SELECT count(DISTINCT locked_by) FROM claimed WHERE is_live) AS busy_consumers,
           least(min(since), (SELECT since FROM first)) AS since,
           least(min(unsent_since), (SELECT unsent_since FROM first)) AS unsent_since
    FROM work
)
SELECT w.kind, coalesce(sum(w.entries), 0)::bigint AS ready_entries,
       coalesce(sum(w.inputs), 0)::bigint AS ready_inputs,
       coalesce(sum(w.running), 0)::bigint AS running_inputs,
       CASE WHEN count(*) FILTER (WHERE w.inputs > 0 AND p.input_ms IS NULL) = 0
            THEN coalesce(sum(w.inputs * p.input_ms), 0) / 1000 END::double precision
           AS work_seconds,
       coalesce((SELECT is_capped FROM total), false) AS is_capped,
       (SELECT busy_consumers FROM total) AS busy_consumers,
       greatest(0, extract(epoch FROM now() - (SELECT since FROM total)))::double precision
           AS runnable_seconds,
       greatest(0, extract(epoch FROM now() - (SELECT unsent_since FROM total)))::double precision
           AS unsent_seconds,
       greatest(0, extract(epoch FROM now() - (SELECT since FROM event)))::double precision
           AS unsent_event_seconds
FROM work w LEFT JOIN kind_pace p ON p.kind = w.kind
GROUP BY GROUPING SETS ((w.kind), ())
"""
)

# One step through the index for each fingerprint, however many letters it has.
_LETTERS = sa.text(
    """
WITH RECURSIVE cause AS (
    (SELECT owner_id, fingerprint FROM dead_letter ORDER BY owner_id, fingerprint LIMIT 1)
    UNION ALL
    SELECT following.owner_id, following.fingerprint
    FROM cause CROSS JOIN LATERAL (
        SELECT d.owner_id, d.fingerprint FROM dead_letter d
        WHERE (d.owner_id, d.fingerprint) > (cause.owner_id, cause.fingerprint)
        ORDER BY d.owner_id, d.fingerprint LIMIT 1) AS following
)
SELECT (SELECT count(*) FROM (SELECT FROM cause LIMIT CAST(:most_causes AS integer)) c) AS causes,
       (SELECT count(*) FROM (SELECT FROM dead_letter LIMIT CAST(:most AS integer)) d) AS letters
"""
)

_HOLD = sa.text(
    """
INSERT INTO duty (name, holder, held_until)
VALUES (CAST(:name AS text), CAST(:holder AS text),
        now() + CAST(:seconds AS double precision) * interval '1 second')
ON CONFLICT (name) DO UPDATE SET holder = EXCLUDED.holder, held_until = EXCLUDED.held_until
WHERE duty.holder = EXCLUDED.holder OR duty.held_until < now()
RETURNING name
"""
)

_RELEASE = sa.text(
    """
DELETE FROM duty WHERE name = CAST(:name AS text) AND holder = CAST(:holder AS text)
RETURNING name
"""
)


def measure_backlog(*, most: int) -> TextClause:
    """Measure what is ready and what runs, by kind and, where kind is null, in all.

    (kind, ready_entries, ready_inputs, running_inputs, work_seconds), and, the same on each row,
    of the whole (is_capped, busy_consumers, runnable_seconds, unsent_seconds,
    unsent_event_seconds). is_capped: some kind has ``most`` entries or more in one state, and no
    more of these were counted. work_seconds: how long the ready inputs run one after the other;
    null where no pace is known of some of them. runnable_seconds: how long the oldest of them is
    due; unsent_seconds: how long the oldest that was not sent is; unsent_event_seconds: how long
    the oldest event is; 0: none is.
    """
    return _BACKLOG.bindparams(most=most)


def count_letters(*, most: int, most_causes: int) -> TextClause:
    """Count dead letters, and the owners' different causes (fingerprints) of them."""
    return _LETTERS.bindparams(most=most, most_causes=most_causes)


def hold_duty(name: str, holder: str, seconds: float) -> TextClause:
    """Take or keep a duty that one worker at a time has: one row, or none when another has it."""
    return _HOLD.bindparams(name=name, holder=holder, seconds=seconds)


def release_duty(name: str, holder: str) -> TextClause:
    """Give up a duty, if it is this worker's, so that another takes it at once: (name)."""
    return _RELEASE.bindparams(name=name, holder=holder)
