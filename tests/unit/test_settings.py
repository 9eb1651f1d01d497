"""Settings that could not work stop the process, and say which they are."""

from typing import get_args

import pytest

from infra.settings import PREFIX, Settings
from schema.errors import Misconfigured

FLOATS = sorted(
    name
    for name, about in Settings.model_fields.items()
    if about.annotation is float or float in get_args(about.annotation)
)


def with_(**settings: str) -> Settings:
    environment = {PREFIX + name.upper(): value for name, value in settings.items()}
    return Settings.from_environment({"DATABASE_URL": "postgresql://h/n", **environment})


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("value", ["inf", "-inf", "nan", "1e9", "-1"])
def test_no_time_is_endless_or_longer_than_the_neighbours_take(name: str, value: str) -> None:
    with pytest.raises(Misconfigured, match=PREFIX + name.upper()):
        with_(**{name: value})


@pytest.mark.parametrize(
    "name", ["statement_timeout_seconds", "idle_in_transaction_timeout_seconds"]
)
def test_a_limit_that_postgres_would_round_to_none_is_refused(name: str) -> None:
    with pytest.raises(Misconfigured, match=PREFIX + name.upper()):
        with_(**{name: "0.0001"})


@pytest.mark.parametrize("name", ["poll_floor_seconds", "maintenance_interval_seconds"])
def test_a_loop_that_rests_longer_than_a_stuck_one_may_is_refused(name: str) -> None:
    with pytest.raises(Misconfigured, match=PREFIX + name.upper()):
        with_(**{name: "120"})
    assert getattr(with_(**{name: "120", "liveness_timeout_seconds": "150"}), name) == 120
