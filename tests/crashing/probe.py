"""The step at which a process dies, and the database that dies there."""

import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from sqlalchemy import Row, TextClause
from sqlalchemy.ext.asyncio import AsyncConnection

from infra.database import Database
from schema.statements.bound import Bound
from schema.statements.claim import claim_by_id, claim_ready, take_over_lapsed
from schema.statements.relay import lock_ready, mark_sent
from schema.statements.settle import settle_inputs
from schema.statements.turns import Turn

Result = TypeVar("Result")

_STEPS = {
    claim_ready("", 0, kinds=[], most=0).text: "claim",
    claim_ready("", 0, kinds=[], most=0, turn=Turn("any")).text: "claim",
    claim_by_id("", 0, []).text: "claim",
    settle_inputs({}, held_ids=[], held_epochs=[]).text: "settle",
    lock_ready("", 0, kind="", most=0).text: "lock",
    mark_sent("", []).text: "mark",
    take_over_lapsed(0, most=0).text: "take-over",
}


class Probe:
    """Kills this process when it comes to the step for the first time."""

    def __init__(self, step: str) -> None:
        self._step = step

    def reach(self, step: str) -> None:
        if step == self._step:
            sys.stderr.write(json.dumps({"event": "probe.reached", "step": step}) + "\n")
            sys.stderr.flush()
            os.kill(os.getpid(), signal.SIGKILL)


class CrashingDatabase(Database):
    """Dies before a statement is sent, or when it is committed and nobody knows the answer yet."""

    probe: Probe

    async def fetch(self, statement: TextClause | Bound) -> Sequence[Row[Any]]:
        step = _STEPS.get(statement.text)
        if step is None:
            return await super().fetch(statement)
        self.probe.reach(f"{step}:before")
        rows = await super().fetch(statement)
        if rows:
            self.probe.reach(f"{step}:after")
        return rows

    async def run(self, unit: Callable[[AsyncConnection], Awaitable[Result]]) -> Result:
        """Run a unit; those of consumers and reapers settle."""
        self.probe.reach("settle:before")

        async def probed(connection: AsyncConnection) -> Result:
            result = await unit(connection)
            self.probe.reach("settle:uncommitted")
            return result

        result = await super().run(probed)
        self.probe.reach("settle:after")
        return result
