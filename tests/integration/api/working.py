"""A worker's hand on the jobs that a test submits: claim, settle, lapse and sweep, step by step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
from sqlalchemy import Row, text

from dispatcher.redriver import Redriver
from dispatcher.sweeper import Sweeper
from infra.database import Database
from infra.queue.protocol import Claim, ClaimedInput
from infra.settle import Settlement, settle
from schema.outcome import Backoff, Failed, Missing, Outcome, Refused, Skipped, Succeeded
from schema.statements.claim import claim_ready

Say = Callable[[ClaimedInput], Outcome]


def dies(_input: ClaimedInput) -> Outcome:
    return Refused("Boom", "it broke")


def succeeds(_input: ClaimedInput) -> Outcome:
    return Succeeded({"n": 1})


def fails(_input: ClaimedInput) -> Outcome:
    return Failed("Timeout", "no answer")


def by_ordinal(input_: ClaimedInput) -> Outcome:
    """Give a different end to each of five neighbours; a third of the dead have a cause apart."""
    match input_.ordinal % 5:
        case 0:
            return Refused("Boom", f"it broke at {input_.ordinal}")
        case 1:
            return Missing("no rows")
        case 2:
            return Refused("Bang", f"it burst at {input_.ordinal}")
        case 3:
            return Skipped("nothing to do")
        case _:
            return Succeeded({"n": input_.ordinal})


@dataclass
class Work:
    """What workers and the dispatcher do, done when the test says so."""

    database: Database

    async def claim(self, *, lease_seconds: float = 30, most: int = 100) -> list[Claim]:
        statement = claim_ready("worker-1", lease_seconds, kinds=["note", "export"], most=most)
        return [Claim.from_row(row) for row in await self.database.fetch(statement)]

    async def settle(self, claims: Sequence[Claim], say: Say, *, wait: float = 0) -> None:
        lines = [
            Settlement(claim, input_, say(input_), 7) for claim in claims for input_ in claim.inputs
        ]
        backoffs = {kind: Backoff(wait, wait) for kind in ("note", "export")}
        if lines:
            await settle(self.database, "worker-1", lines, backoffs=backoffs, jitter=lambda: 0.999)

    async def run(self, say: Say) -> None:
        """Work until nothing is due."""
        while claims := await self.claim():
            await self.settle(claims, say)

    async def sweep(self) -> None:
        """Let the dispatcher put entries where their jobs want them, until nothing moves."""
        sweeper = Sweeper(self.database, most=100, wake=lambda: None, tell=lambda: None)
        while await sweeper.once():
            pass

    async def redrive(self) -> None:
        """Let the dispatcher work off open redrives; those of jobs still to be swept wait."""
        redriver = Redriver(self.database, chunks={}, wake=lambda: None)
        while await self.rows("SELECT id FROM redrive WHERE finished_at IS NULL"):
            await self.sweep()
            await redriver.once()

    async def rows(self, statement: str, **parameters: Any) -> Sequence[Row[Any]]:
        return await self.database.fetch(text(statement).bindparams(**parameters))


async def submit(client: httpx.AsyncClient, body: dict[str, Any], **headers: str) -> str:
    response = await client.post("/jobs", json=body, headers=headers)
    assert response.status_code == 202, response.text
    return str(response.json()["jobId"])


async def pages(client: httpx.AsyncClient, address: str, **query: Any) -> list[list[Any]]:
    """Read a list page by page to its end."""
    found, after = [], None
    while True:
        parameters = query | ({"after": after} if after else {})
        response = await client.get(address, params=parameters)
        assert response.status_code == 200, response.text
        found.append(response.json()["items"])
        after = response.json()["next"]
        if after is None:
            return found


def errors(response: httpx.Response) -> list[str]:
    """Give the places that a refusal names."""
    return [str(bad.get("pointer", bad.get("parameter"))) for bad in response.json()["errors"]]
