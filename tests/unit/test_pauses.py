"""Pauses: until something is due, and ever longer for what is due and cannot be taken."""

import pytest

from infra.pauses import Pauses


def test_a_pause_lasts_until_the_first_of_what_is_ahead_and_never_longer_than_it_may() -> None:
    pauses = Pauses(most_seconds=5)
    assert pauses.seconds([]) == 5
    assert pauses.seconds([60]) == 5
    assert pauses.seconds([3, 1.5]) == 1.5
    assert pauses.seconds([0.0001]) == 0.01


def test_each_pause_for_what_cannot_be_taken_is_twice_the_one_before() -> None:
    pauses = Pauses(most_seconds=5)
    pauses_in_vain = [pauses.seconds([-1]) for _ in range(12)]
    assert pauses_in_vain[:4] == [0.01, 0.02, 0.04, 0.08]
    assert pauses_in_vain[-2:] == [5, 5]


@pytest.mark.parametrize("because", ["something was taken", "nothing is due any more"])
def test_the_next_pause_in_vain_is_short_again(because: str) -> None:
    pauses = Pauses(most_seconds=5)
    for _ in range(8):
        pauses.seconds([0])
    if because == "something was taken":
        pauses.took()
    else:
        pauses.seconds([60])
    assert pauses.seconds([0]) == 0.01


def test_what_cannot_be_taken_does_not_hide_what_will_be_due_soon() -> None:
    pauses = Pauses(most_seconds=5)
    for _ in range(12):
        pauses.seconds([0])
    assert pauses.seconds([0, 0.3]) == 0.3


def test_no_pause_is_longer_than_the_most_however_short_that_is() -> None:
    pauses = Pauses(most_seconds=0.015)
    assert [pauses.seconds([0]) for _ in range(3)] == [0.01, 0.015, 0.015]
