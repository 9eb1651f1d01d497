"""Whether an earlier file may serve: the rule, and the look-up that many inputs share."""

from __future__ import annotations

import asyncio
import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING

from schema.outcome import Artifact
from schema.statements.artifacts import find_artifacts

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from infra.database import Database


@dataclass(frozen=True, slots=True)
class Registered:
    """What the registry says of one file, and the date on which it said so."""

    artifact: Artifact | None
    today: dt.date


def may_reuse(effective_date: dt.date, *, days: int, registered: Registered) -> bool:
    """Say whether the registered file may serve; there must be one, and the date be old enough."""
    is_young = effective_date > registered.today - dt.timedelta(days=days)
    return registered.artifact is not None and not is_young


class Registry:
    """Looks up registered files; those asked for at the same time cost one statement."""

    def __init__(self, database: Database, *, kind: str) -> None:
        self._database = database
        self._kind = kind
        self._asking = asyncio.Lock()
        self._waiting: list[_Question] = []

    async def find(self, owner_id: UUID, natural_key: str) -> Registered:
        """Find one file of an owner; raise ``Unavailable`` when the database is away."""
        answer: asyncio.Future[Registered | Exception] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Question(owner_id, natural_key, answer))
        try:
            # Whoever comes first asks for all; the others find their answers on their turn.
            async with self._asking:
                if not answer.done():
                    await asyncio.sleep(0)  # so that those who start with us come along
                    await self._ask()
        finally:
            answer.cancel()  # if no one waits any more, the next round leaves this question out
        found = answer.result()
        if isinstance(found, Exception):
            raise found
        return found

    async def _ask(self) -> None:
        questions = [question for question in self._waiting if not question.answer.done()]
        self._waiting = []
        try:
            answers = await self._fetch(questions)
        except Exception as error:  # noqa: BLE001 - handed to everyone who asked
            answers = [error] * len(questions)
        except asyncio.CancelledError:
            self._waiting = [*questions, *self._waiting]  # the next in turn asks for them
            raise
        for question, answer in zip(questions, answers, strict=True):
            if not question.answer.done():
                question.answer.set_result(answer)

    async def _fetch(self, questions: Sequence[_Question]) -> Sequence[Registered | Exception]:
        rows = await self._database.fetch(
            find_artifacts(
                self._kind,
                owner_ids=[question.owner_id for question in questions],
                natural_keys=[question.natural_key for question in questions],
            )
        )
        return [
            Registered(
                None
                if row.uri is None
                else Artifact(question.natural_key, row.uri, row.size_bytes, row.etag),
                row.today,
            )
            for question, row in zip(questions, rows, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class _Question:
    owner_id: UUID
    natural_key: str
    answer: asyncio.Future[Registered | Exception]
