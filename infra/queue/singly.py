"""Claims one entry after the other, where a claim of several fails for what stands in a row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import structlog

from schema.errors import HaulageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from uuid import UUID

    from sqlalchemy import Row

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Singly(NamedTuple):
    """Rows of what was claimed, and the ids of entries that cannot be."""

    rows: Sequence[Row[Any]]
    unclaimable: Sequence[int]


async def claim_singly(
    jobs: Mapping[int, UUID], claim: Callable[[int], Awaitable[Sequence[Row[Any]]]]
) -> Singly:
    """Claim entries by their ids, each in a statement of its own; ``jobs`` says whose each is.

    An entry that cannot be claimed is told, and left. Raises what says that a neighbour is away,
    unless something was claimed before: that must be carried.
    """
    rows: list[Row[Any]] = []
    unclaimable: list[int] = []
    for entry_id, job_id in jobs.items():
        try:
            rows += await claim(entry_id)
        except HaulageError:
            if not rows:
                raise
            break
        except Exception:
            unclaimable.append(entry_id)
            log.exception(
                "entry.unclaimable",
                entry=entry_id,
                job_id=str(job_id),
                remedy="its row or its job's cannot be written; mend it, the entry is tried again",
            )
    return Singly(rows, unclaimable)
