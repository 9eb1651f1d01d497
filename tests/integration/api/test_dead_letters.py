"""Reading the DLQ over HTTP: what it tells, page by page, and by cause."""

from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from api.queries import LARGEST_PAGE
from schema.outcome import Refused
from schema.storable import storable
from tests.integration.api.conftest import Api, notes
from tests.integration.api.working import Work, by_ordinal, dies, errors, pages, submit


async def listed(client: httpx.AsyncClient, **query: Any) -> list[tuple[str, int]]:
    found = await pages(client, "/dlq", **query)
    return [(item["jobId"], item["ordinal"]) for page in found for item in page]


async def test_a_dead_letter_tells_what_died_of_what(client: httpx.AsyncClient, work: Work) -> None:
    job = await submit(client, notes(1), **{"X-Correlation-Id": "c-1"})
    await work.run(dies)
    (item,) = (await client.get("/api/dlq")).json()["items"]
    died_at, fingerprint = item.pop("diedAt"), item.pop("fingerprint")
    assert died_at.endswith("Z")
    assert len(fingerprint) == 16
    assert item == {
        "jobId": job,
        "ordinal": 0,
        "owner": "acme",
        "kind": "note",
        "input": {"text": "note 0"},
        "generation": 0,
        "attempts": 1,
        "maxAttempts": item["maxAttempts"],
        "worker": "worker-1",
        "error": {"type": "Boom", "message": "it broke"},
        "correlationId": "c-1",
        "links": {
            "input": f"/api/jobs/{job}/inputs/0",
            "reprocess": f"/api/dlq/{job}/0/reprocess",
        },
    }
    assert (await client.get(item["links"]["input"])).status_code == 200
    assert (await client.post(item["links"]["reprocess"])).status_code == 202
    assert (await client.get("/dlq")).json() == {"items": [], "next": None}


async def test_letters_of_one_instant_are_neither_skipped_nor_repeated(
    client: httpx.AsyncClient, work: Work
) -> None:
    first, second = await submit(client, notes(4)), await submit(client, notes(3))
    await work.run(dies)
    await work.rows("UPDATE dead_letter SET died_at = now() RETURNING ordinal")
    found = await pages(client, "/dlq", pageSize=2)
    assert [len(page) for page in found] == [2, 2, 2, 1]
    places = [(item["jobId"], item["ordinal"]) for page in found for item in page]
    assert places == [*((second, n) for n in (2, 1, 0)), *((first, n) for n in (3, 2, 1, 0))]


async def test_letters_are_filtered_by_each_parameter(
    client: httpx.AsyncClient, work: Work
) -> None:
    early = await submit(client, notes(5))
    await work.run(by_ordinal)
    await work.rows("UPDATE dead_letter SET died_at = died_at - interval '1 hour' RETURNING kind")
    late = await submit(client, notes(6))
    await work.run(by_ordinal)
    assert await listed(client, pageSize=1) == [
        (late, 5), (late, 2), (late, 0), (early, 2), (early, 0),
    ]  # fmt: skip
    assert await listed(client, jobId=early) == [(early, 2), (early, 0)]
    assert await listed(client, jobId="J20260110_999999") == []
    assert await listed(client, kind="note", pageSize=2) == await listed(client)
    assert await listed(client, kind="export") == []
    assert await listed(client, errorClass="Bang", pageSize=1) == [(late, 2), (early, 2)]
    assert await listed(client, errorClass="None", pageSize=1) == []
    item = (await client.get("/dlq", params={"jobId": late, "pageSize": 1})).json()["items"][0]
    assert await listed(client, fingerprint=item["fingerprint"], pageSize=1) == [
        (late, 5), (late, 0), (early, 0),
    ]  # fmt: skip
    (row,) = await work.rows(
        "SELECT max(died_at) - interval '1 minute' AS between FROM dead_letter"
    )
    between = row.between.isoformat()
    assert len(await listed(client, diedFrom=between)) == 3
    assert len(await listed(client, diedTo=between)) == 2


async def test_causes_are_grouped_the_commonest_first(
    client: httpx.AsyncClient, work: Work
) -> None:
    for _ in range(2):
        await submit(client, notes(6))
    await work.run(by_ordinal)
    boom, bang = (await client.get("/dlq/groups")).json()["items"]
    assert (boom["count"], boom["jobs"], boom["kind"]) == (4, 2, "note")
    assert boom["error"]["type"] == "Boom"
    assert boom["error"]["message"].startswith("it broke at ")
    assert boom["firstDiedAt"] <= boom["lastDiedAt"]
    assert (bang["count"], bang["error"]["type"]) == (2, "Bang")
    query = {"fingerprint": bang["fingerprint"], "kind": "note"}
    assert (await client.get("/dlq/groups", params=query)).json()["items"] == [bang]
    assert len((await client.get("/dlq/groups?pageSize=1")).json()["items"]) == 1


async def test_an_owner_sees_only_its_own_letters_and_an_admin_those_of_all(
    api: Api, client: httpx.AsyncClient, work: Work
) -> None:
    job = await submit(client, notes(1))
    await work.run(dies)
    async with await api.client(owner="zeta") as zeta:
        assert await listed(zeta) == await listed(zeta, jobId=job) == []
        assert (await zeta.get("/dlq/groups")).json()["items"] == []
        assert (await zeta.post(f"/dlq/{job}/0/reprocess")).status_code == 404
        assert (await zeta.post("/dlq/reprocess", json={"all": True})).json()["matched"] == 0
        assert (await zeta.get("/dlq", params={"owner": "acme"})).status_code == 403
        assert (await zeta.get("/parked")).status_code == 403
    async with await api.client(owner="ops", role="admin") as admin:
        assert await listed(admin) == await listed(admin, owner="acme") == [(job, 0)]
        assert await listed(admin, owner="nobody") == []


async def test_a_rare_class_is_found_at_once_and_grouped_by_itself(
    client: httpx.AsyncClient, work: Work
) -> None:
    rare = await submit(client, notes(1))
    await work.run(by_ordinal)
    await submit(client, notes(LARGEST_PAGE + 1))
    await work.run(lambda _: Refused("Other", "it fell"))
    found = await pages(client, "/dlq", errorClass="Boom", pageSize=1)
    assert [[item["jobId"] for item in page] for page in found] == [[rare]]
    groups = await client.get("/dlq/groups", params={"errorClass": "Boom"})
    assert [(each["error"]["type"], each["count"]) for each in groups.json()["items"]] == [
        ("Boom", 1)
    ]


@pytest.mark.parametrize(
    "name", ["Gr\u00f6\u00dfe", "\u9519\u8bef", "two\nlines", " x", "x" * 199 + " y"]
)
async def test_letters_are_found_by_the_type_that_they_show_whatever_it_is(
    client: httpx.AsyncClient, work: Work, name: str
) -> None:
    await submit(client, notes(1))
    await work.run(lambda _: storable(Refused(name, "it broke")))
    (item,) = (await client.get("/dlq")).json()["items"]
    shown = item["error"]["type"]
    assert len((await client.get("/dlq", params={"errorClass": shown})).json()["items"]) == 1
    asked = {"errorClass": shown, "dryRun": True}
    answer = await client.post("/dlq/reprocess", json=asked)
    assert (answer.status_code, answer.json()["matched"]) == (200, 1)


@pytest.mark.parametrize(
    ("query", "parameter"),
    [
        ("pageSize=0", "pageSize"),
        ("kind=%00", "kind"),
        ("kind=note&kind=note", "kind"),
        ("jobId=x", "jobId"),
        ("fingerprint=ABCDEF0123456789", "fingerprint"),
        ("diedFrom=yesterday", "diedFrom"),
        ("errorClass=a%00", "errorClass"),
        ("groupBy=fingerprint", "groupBy"),
    ],
)
async def test_a_bad_filter_is_named(client: httpx.AsyncClient, query: str, parameter: str) -> None:
    response = await client.get(f"/dlq?{query}")
    assert response.status_code == 422
    assert errors(response) == [parameter]


async def test_a_cursor_serves_only_its_own_list(client: httpx.AsyncClient, work: Work) -> None:
    job = await submit(client, notes(3))
    await work.run(dies)
    cursor = (await client.get("/dlq", params={"pageSize": 1})).json()["next"]
    for address, query in (
        ("/dlq", {"after": cursor, "kind": "note"}),
        ("/dlq", {"after": cursor + "!"}),
        ("/dlq", {"after": "1"}),
        ("/jobs", {"after": cursor}),
        (f"/jobs/{job}/inputs", {"after": cursor}),
    ):
        assert (await client.get(address, params=query)).status_code == 400
    assert (await client.get("/dlq", params={"after": cursor, "pageSize": 9})).status_code == 200


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.dictionaries(
        st.sampled_from(["kind", "jobId", "fingerprint", "diedFrom", "diedTo", "errorClass",
                         "owner", "after", "pageSize"]),
        st.text(max_size=20),
    )
)  # fmt: skip
async def test_whatever_is_asked_is_answered_or_refused(
    client: httpx.AsyncClient, query: dict[str, str]
) -> None:
    for address in ("/dlq", "/dlq/groups"):
        response = await client.get(address, params=query)
        assert response.status_code in {200, 400, 403, 422}
