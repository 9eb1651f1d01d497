"""Statements that measure the whole platform, at a cost that does not grow with it.

Work is counted in the small outbox, never in inputs, and up to a limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

if TYPE_CHECKING:
    from sqlalchemy.sql.elements import TextClause

# What the relay puts off is due all the same: while SQS is away nothing would ever grow old.
_IS_DUE = "(available_at <= now() OR relay_attempts > 0)"
_SINCE = "CASE WHEN relay_attempts > 0 THEN least(available_at, turn_at) ELSE available_at END"

# The row without a kind is the total: consumers work on several kinds, and count once. What is due
# later is passed over, and does not use up the limit. In the order of their making the oldest are
# among those that are looked at, however many there are. Of events, that with the next turn stands
# for what waits longest.
_BACKLOG = sa.text(
    f"""
WITH live AS MATERIALIZED (
    SELECT kind, unfinished, locked_by, {_SINCE} AS since,
           state = 'CLAIMED' AND locked_until > now() AS is_leased,
           state <> 'CLAIMED' AS is_ready, state = 'PENDING' AS is_unsent
    FROM outbox
    WHERE type = 'inputs' AND (state = 'CLAIMED' OR state IN ('PENDING', 'SENT') AND {_IS_DUE})
    ORDER BY id
    LIMIT CAST(:most AS integer)
), event AS MATERIALIZED (
    SELECT {_SINCE} AS since FROM outbox
    WHERE state = 'PENDING' AND type = 'event' AND {_IS_DUE}
    ORDER BY priority DESC, available_at, id
    LIMIT 1
)
SELECT l.kind, count(*) AS looked_at,
       count(*) FILTER (WHERE is_ready) AS ready_entries,
       coalesce(sum(unfinished) FILTER (WHERE is_ready), 0)::bigint AS ready_inputs,
       coalesce(sum(unfinished) FILTER (WHERE is_leased), 0)::bigint AS running_inputs,
       count(DISTINCT locked_by) FILTER (WHERE is_leased) AS busy_consumers,
       (sum(unfinished * p.input_ms) FILTER (WHERE is_ready) / 1000)::double precision
           AS work_seconds,
       greatest(0, extract(epoch FROM now() - min(since) FILTER (WHERE is_ready)))
           ::double precision AS runnable_seconds,
       greatest(0, extract(epoch FROM now() - least(min(since) FILTER (WHERE is_unsent),
                                                    (SELECT since FROM event))))
           ::double precision AS unsent_seconds
FROM live l LEFT JOIN kind_pace p ON p.kind = l.kind
GROUP BY GROUPING SETS ((l.kind), ())
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


def measure_backlog(*, most: int) -> TextClause:
    """Measure what is ready and what runs, by kind and, where kind is null, in all.

    (kind, looked_at, ready_entries, ready_inputs, running_inputs, busy_consumers, work_seconds,
    runnable_seconds, unsent_seconds); looked_at is ``most`` where there was more to count.
    work_seconds: how long the ready inputs run one after the other, of those kinds whose pace is
    known. runnable_seconds: how long the oldest of them is due; unsent_seconds: how long the
    oldest that was not sent is, events of all kinds included; 0: none is.
    """
    return _BACKLOG.bindparams(most=most)


def count_letters(*, most: int, most_causes: int) -> TextClause:
    """Count dead letters, and the owners' different causes (fingerprints) of them."""
    return _LETTERS.bindparams(most=most, most_causes=most_causes)


def hold_duty(name: str, holder: str, seconds: float) -> TextClause:
    """Take or keep a duty that one worker at a time has: one row, or none when another has it."""
    return _HOLD.bindparams(name=name, holder=holder, seconds=seconds)
