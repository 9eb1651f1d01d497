"""Whose turn it is: parts of the statements that take ready entries, for consumers and the relay.

A *flow* is the entries of one owner and kind. Flows take turns, from the one after a place that
the caller remembers, and each gives its best entries: by priority, then by ``turn_at``. Flows are
found by stepping from one to the next through the index ``outbox_ready``, so that what a flow
holds costs nothing to pass over.

*Ready* is what the index holds. Entries of which ``deferred`` says that they are due later are
not in it: ``promote_due`` lets them in once they are due.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from schema.statements.batch import NOT_SHUNNED, THESE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Row

# The k-th chunk of a job has its turn so much later than the first: within a flow, a later small
# job comes before the tail of a large one, and the tail before what is submitted after its turn.
STRIDE = "interval '1 second'"

READY = "o.state = 'PENDING' AND o.type = 'inputs' AND NOT o.deferred"

# Of ready entries: who may be taken now. The job is asked in an expression, and not in a join,
# because then no plan is left that reads and sorts a whole flow. ``available_at`` decides;
# ``deferred`` only keeps the index short.
_ACTIVE = """j.status IN ('SUBMITTED', 'RUNNING')
                 AND (j.expires_at IS NULL OR j.expires_at > now())"""
RUNNABLE = f"(SELECT {_ACTIVE} FROM job j WHERE j.id = o.job_id)"
_DUE = "o.available_at <= now() AND (o.locked_until IS NULL OR o.locked_until < now())"
FREE = f"{_DUE} AND {RUNNABLE}"

# Who claims starts the job, if nobody has. One whose row is in other hands is passed over: the
# claim would wait for it, and with it the jobs of all others.
CLAIMABLE = f"""(SELECT {_ACTIVE}
                 AND (j.started_at IS NOT NULL
                      OR EXISTS (SELECT FROM job n WHERE n.id = j.id
                                 FOR NO KEY UPDATE SKIP LOCKED))
               FROM job j WHERE j.id = o.job_id)"""

_NIL = "CAST('00000000-0000-0000-0000-000000000000' AS uuid)"

# The flow after f, of the kinds that are asked for.
_NEXT = f"""
    CROSS JOIN LATERAL (
        SELECT k.kind, n.owner_id
        FROM unnest(CAST(:kinds AS text[])) AS k (kind)
        CROSS JOIN LATERAL (
            SELECT o.owner_id FROM outbox o
            WHERE {READY} AND o.kind = k.kind
              AND o.owner_id > CASE WHEN k.kind = f.kind THEN f.owner_id ELSE {_NIL} END
            ORDER BY o.owner_id LIMIT 1
        ) n
        WHERE k.kind >= f.kind
        ORDER BY k.kind LIMIT 1
    ) n
"""

_AHEAD = f"""
WITH RECURSIVE ahead AS (
    SELECT CAST(:after_kind AS text) AS kind, CAST(:after_owner AS uuid) AS owner_id, 0 AS place
  UNION ALL
    SELECT n.kind, n.owner_id, f.place + 1 FROM ahead f {_NEXT}
)"""
_BEHIND = f"""behind AS (
    SELECT '' AS kind, {_NIL} AS owner_id, 1000000 AS place
  UNION ALL
    SELECT n.kind, n.owner_id, f.place + 1 FROM behind f {_NEXT}
    WHERE (n.kind, n.owner_id) <= (CAST(:after_kind AS text), CAST(:after_owner AS uuid))
)"""
_ALL_ROUND = f"""{_AHEAD}, {_BEHIND}, flow AS (
    (SELECT * FROM ahead OFFSET 1) UNION ALL (SELECT * FROM behind OFFSET 1)
)"""
# Behind the first turn there is nobody.
_FROM_THE_FIRST = f"""{_AHEAD}, flow AS (
    SELECT * FROM ahead OFFSET 1
)"""
# ``flow`` is read as far as entries are wanted: flows that can give none are passed over. Each
# gives as many as it may when all share; how many share is counted up to ``most``.
_PICKED = f""", share AS (
    SELECT greatest(1, CAST(:most AS bigint) / greatest(1, count(*))) AS most
    FROM (SELECT FROM flow LIMIT CAST(:most AS integer)) AS f
), picked AS MATERIALIZED (
    SELECT e.id, f.place
    FROM flow f CROSS JOIN LATERAL (
        SELECT o.id FROM outbox o
        WHERE {READY} AND o.kind = f.kind AND o.owner_id = f.owner_id
          AND {_DUE} AND {NOT_SHUNNED} AND %s
        ORDER BY o.priority DESC, o.turn_at, o.id
        LIMIT (SELECT most FROM share)
        FOR UPDATE OF o SKIP LOCKED
    ) e
    LIMIT CAST(:most AS integer)
)"""
PICKED_TO_SEND = _ALL_ROUND + _PICKED % RUNNABLE
THESE_TO_SEND = f"""
WITH picked AS MATERIALIZED (
    SELECT o.id, 0 AS place FROM outbox o
    WHERE {THESE} AND {READY} AND {_DUE} AND {RUNNABLE}
    FOR UPDATE OF o SKIP LOCKED
)"""
PICKED_TO_CLAIM = _ALL_ROUND + _PICKED % CLAIMABLE
FIRST_TO_CLAIM = _FROM_THE_FIRST + _PICKED % CLAIMABLE

# Postgres cannot know how many were picked; of an array it expects few, and looks them up by key.
PICKED_IDS = "ANY (ARRAY(SELECT id FROM picked))"

# One of each flow, then a second of each, and so on: ``o`` are the entries, ``p`` what was picked.
IN_TURN = """row_number() OVER (PARTITION BY p.place
                             ORDER BY o.priority DESC, o.turn_at, o.id), p.place"""


class Turn(NamedTuple):
    """The flow that was served last; a process keeps it from one round to the next."""

    kind: str = ""
    owner_id: UUID = UUID(int=0)

    def after(self, rows: Sequence[Row[Any]], *, most: int | None = None) -> Turn:
        """Give the turn after a round that took these rows (kind, owner_id, place).

        Fewer than ``most``: every flow had its turn, and the first begins again.
        """
        if most is not None and len(rows) < most:
            return FIRST_TURN
        if not rows:
            return self
        last = max(rows, key=lambda row: int(row.place))
        return Turn(last.kind, last.owner_id)


FIRST_TURN = Turn()
