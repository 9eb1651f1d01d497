"""Kinds whose models do more than name their fields: what was sent reaches the processor."""

import uuid
from typing import Any

import pytest
from pydantic import AliasChoices, Field, Json, computed_field
from sqlalchemy import text

from api.app import build_app
from consumer.processors.protocol import Work as Given
from consumer.processors.running import OneByOne
from infra.database import Database
from infra.http import Health
from infra.wakeup import Notifier
from schema.kinds import JobInput, JobOptions, Kind
from schema.outcome import Outcome, Succeeded
from tests.integration.api.conftest import AddKey, Api
from tests.integration.api.working import Work
from tests.platform import settings_for


class Order(JobInput):
    number: int = Field(alias="orderNumber")
    size: int = Field(validation_alias=AliasChoices("Size", "size"))
    items: Json[list[int]]
    tags: frozenset[str] = frozenset()
    given: uuid.UUID = Field(default_factory=uuid.uuid4)

    @computed_field
    def first(self) -> int:
        return self.items[0]


class Delivery(JobOptions):
    route: Json[dict[str, int]]
    key: uuid.UUID = Field(default_factory=uuid.uuid4)

    @computed_field
    def stops(self) -> int:
        return len(self.route)


ORDER = Kind("note", Order, "unused:unused", options_model=Delivery)


class Taking:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.works: list[Given] = []

    async def process(self, work: Given) -> Outcome:
        self.works.append(work)
        return Succeeded()


@pytest.fixture
def api(database: Database, database_url: str, add_key: AddKey) -> Api:
    app = build_app(
        settings_for(database_url, copy_from_inputs=50),
        database=database,
        notifier=Notifier(database, enabled=False),
        kinds={"note": ORDER},
        health=Health(90),
    )
    return Api(app, add_key)


def orders(many: int) -> dict[str, Any]:
    inputs = [
        {"orderNumber": number, "Size": 5, "items": f"[{number}, 2]", "tags": ["b", "a", "c"]}
        for number in range(many)
    ]
    return {"kind": "note", "options": {"route": '{"a":1}'}, "inputs": inputs}


@pytest.mark.parametrize("many", [1, 60])
async def test_what_was_sent_reaches_the_processor(
    api: Api, work: Work, database: Database, many: int
) -> None:
    async with await api.client() as client:
        assert (await client.post("/jobs", json=orders(many))).status_code == 202
    taking = Taking()
    (claim,) = await work.claim()
    runner = OneByOne(ORDER, taking)
    outcomes = await runner.run(claim, claim.inputs) + await runner.run(claim, claim.inputs)
    assert outcomes == [Succeeded()] * 2 * many
    pairs = zip(taking.works[:many], taking.works[many:], strict=True)
    for number, (once, again) in enumerate(pairs):
        order, options = once.body, once.options
        assert isinstance(order, Order)
        assert (order.number, order.size, order.items) == (number, 5, [number, 2])
        assert order.tags == {"a", "b", "c"}
        assert isinstance(options, Delivery)
        assert options.route == {"a": 1}
        # A default is made once: each attempt sees the same.
        assert (again.body, again.options) == (order, options)


@pytest.mark.parametrize("many", [1, 60])
async def test_a_request_is_the_same_when_its_kind_makes_something_up(
    api: Api, database: Database, many: int
) -> None:
    """The digest was that of what was made of the request: it came again as another one."""
    async with await api.client() as client:
        key = {"Idempotency-Key": "k"}
        answers = [await client.post("/jobs", json=orders(many), headers=key) for _ in range(2)]
        other = await client.post("/jobs", json=orders(many + 1), headers=key)
    assert [answer.status_code for answer in answers] == [202, 202]
    assert answers[1].headers["idempotency-replayed"] == "true"
    assert other.json()["type"] == "urn:haulage:problem:idempotency-key-reused"
    (row,) = await database.fetch(text("SELECT count(*) FROM job"))
    assert row[0] == 1
