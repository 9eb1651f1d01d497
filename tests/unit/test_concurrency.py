"""How many slots a kind may use follows what comes of its inputs."""

import itertools
from collections.abc import Callable, Mapping

import pytest

from consumer.concurrency import Limit
from tests.platform import seeded


class Neighbour:
    """Fails by a chance that depends on how many come at once, and counts the windows."""

    def __init__(self, limit: Limit, chance: Callable[[int], float], *, seed: int) -> None:
        self.limit = limit
        self.chance = chance
        self.now = 0.0
        self._random = seeded(seed)

    def work(self, windows: int, *, rounds: int = 3) -> list[int]:
        """Fill every slot so many times in each window; give the limit after each."""
        values = []
        for _ in range(windows):
            at_once = self.limit.value
            ended = at_once * rounds
            bad = sum(self._random.random() < self.chance(at_once) for _ in range(ended))
            self.limit.note(self.now, ended, bad)
            self.now += 1
            self.limit.decide(self.now)
            values.append(self.limit.value)
        return values


def bears(most: int) -> Callable[[int], float]:
    """Give the chance to fail where a neighbour refuses whatever is too much for it."""
    return lambda at_once: max(0, at_once - most) / at_once


@pytest.mark.parametrize("seed", range(5))
def test_it_settles_near_what_the_neighbour_bears_and_comes_back(seed: int) -> None:
    limit = Limit(floor=1, ceiling=16)
    neighbour = Neighbour(limit, bears(8), seed=seed)
    settled = neighbour.work(200)[20:]
    assert 6 <= sum(settled) / len(settled) <= 11
    assert min(settled) >= 4
    cuts = sum(after < before for before, after in itertools.pairwise(settled))
    assert cuts <= len(settled) / 10, "it waits below where it failed, and does not go to and fro"
    neighbour.chance = bears(100)
    assert neighbour.work(40)[-1] == 16


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("chance", [0.0, 0.01, 0.05])
def test_what_fails_now_and_then_changes_nothing(seed: int, chance: float) -> None:
    values = Neighbour(Limit(floor=1, ceiling=16), lambda _: chance, seed=seed).work(500)
    assert sum(value == 16 for value in values) >= 480


@pytest.mark.parametrize("floor", [1, 4])
def test_what_fails_wholly_goes_on_at_the_floor_and_comes_back_when_it_no_longer_does(
    floor: int,
) -> None:
    limit = Limit(floor=floor, ceiling=16)
    neighbour = Neighbour(limit, lambda _: 1.0, seed=1)
    values = neighbour.work(60)
    assert values[:2] == [8, 4]
    assert values[-1] == floor
    neighbour.chance = lambda _: 0.0
    assert neighbour.work(16 + 10)[-1] == 16


def test_what_began_before_a_cut_is_no_reason_for_another() -> None:
    limit = Limit(floor=1, ceiling=64)
    limit.note(0.0, 64, 64)
    assert limit.decide(1.0)
    limit.note(0.5, 64, 64)
    assert not limit.decide(2.0)
    assert limit.value == 32
    limit.note(1.0, 64, 64)
    assert limit.decide(3.0)
    assert limit.value == 16


def test_too_little_says_nothing_and_is_kept_for_the_next_window() -> None:
    limit = Limit(floor=1, ceiling=16)
    for second in range(3):
        limit.note(second, 5, 5)
        assert not limit.decide(second + 1)
    limit.note(3, 5, 5)
    assert limit.decide(4)


@pytest.mark.parametrize(("ceiling", "windows"), [(3, 3), (16, 16), (1_000, 18)])
def test_it_comes_back_in_as_many_windows_however_many_slots_there_are(
    ceiling: int, windows: int
) -> None:
    limit = Limit(floor=1, ceiling=ceiling)
    neighbour = Neighbour(limit, lambda _: 1.0, seed=1)
    neighbour.work(200)
    neighbour.chance = lambda _: 0.0
    assert neighbour.work(windows + 10)[-1] == ceiling


@pytest.mark.parametrize("bounds", [{"floor": 16, "ceiling": 16}, {"floor": 99, "ceiling": 16}])
def test_a_floor_as_high_as_the_ceiling_turns_it_off(bounds: Mapping[str, int]) -> None:
    limit = Limit(**bounds)
    assert set(Neighbour(limit, lambda _: 1.0, seed=1).work(50)) == {16}
