"""Places: few at once, given in turn, waited for so long and no longer."""

import asyncio
from uuid import UUID

import pytest

from api.places import Places, PlacesOfOwners
from api.problems import Problem

A, B = UUID(int=1), UUID(int=2)


async def test_who_waits_too_long_is_told_when_to_come_back() -> None:
    places = Places(1, wait_seconds=0.01, refusal="too many")
    async with places.one():
        with pytest.raises(Problem, match="too many") as refused:
            async with places.one():
                pass
    assert (refused.value.status, refused.value.headers["Retry-After"]) == (503, "5")
    async with places.one():
        pass


async def test_a_place_is_free_again_whatever_became_of_its_holder() -> None:
    places = Places(1, wait_seconds=0.01, refusal="too many")
    with pytest.raises(ValueError, match="broken"):
        async with places.one():
            raise ValueError("broken")
    async with places.one():
        pass


async def test_the_places_of_one_owner_are_no_other_owners() -> None:
    places = PlacesOfOwners(1, wait_seconds=0.01, refusal="too many")
    async with places.one(A):
        with pytest.raises(Problem):
            async with places.one(A):
                pass
        async with places.one(B):
            pass
    async with places.one(A):
        pass


async def test_who_waits_gets_the_place_that_becomes_free() -> None:
    places, order = PlacesOfOwners(1, wait_seconds=60, refusal="too many"), list[int]()

    async def take(number: int) -> None:
        async with places.one(A):
            order.append(number)
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        for number in range(5):
            group.create_task(take(number))
    assert order == list(range(5))
