"""What an operator may set for a kind, and how wrong settings are named."""

from dataclasses import replace

import pytest

from infra.kinds import load_kinds
from schema.errors import Misconfigured
from schema.kinds import ConcurrencyBounds


def test_a_policy_changes_what_it_names_and_leaves_the_rest() -> None:
    plain = load_kinds("")["export"]
    kind = load_kinds("", '{"export": {"maxAttempts": 9, "chunkMaximum": 7}}')["export"]
    assert (kind.max_attempts, kind.chunk.maximum) == (9, 7)
    assert (kind.backoff, kind.input_model) == (plain.backoff, plain.input_model)
    slow = load_kinds("", '{"export": {"backoffBaseSeconds": 5, "backoffCapSeconds": 60}}')
    assert (slow["export"].backoff.base_seconds, slow["export"].backoff.cap_seconds) == (5, 60)


@pytest.mark.parametrize(
    ("policies", "named"),
    [
        ("{", "not JSON"),
        ("[]", "dict"),
        ('{"nope": {}}', "'nope' is no kind; there are: export"),
        (
            '{"export": {"maxAtempts": 3}}',
            "no policy; there are: maxAttempts, backoff",
        ),
        ('{"export": {"maxAttempts": 0}}', "export.maxAttempts"),
        ('{"export": {"maxAttempts": 101}}', "export.maxAttempts"),
        ('{"export": {"chunkMaximum": 1.5}}', "export.chunkMaximum"),
        ('{"export": {"backoffBaseSeconds": NaN}}', "export.backoffBaseSeconds"),
        ('{"export": {"backoffBaseSeconds": 50, "backoffCapSeconds": 5}}', "less than"),
        ('{"export": 3}', "export"),
    ],
)
def test_what_is_wrong_is_named(policies: str, named: str) -> None:
    with pytest.raises(Misconfigured, match="HAULAGE_KIND_POLICIES") as caught:
        load_kinds("", policies)
    assert named in str(caught.value)


def test_how_many_run_at_once_has_bounds_for_each_kind() -> None:
    kind = load_kinds("", '{"export": {"concurrencyMinimum": 2, "concurrencyMaximum": 4}}')
    assert kind["export"].concurrency == ConcurrencyBounds(2, 4)
    with pytest.raises(Misconfigured, match="less than concurrencyMinimum"):
        load_kinds("", '{"export": {"concurrencyMinimum": 3, "concurrencyMaximum": 2}}')
    with pytest.raises(ValueError, match="concurrency minimum"):
        replace(kind["export"], concurrency=ConcurrencyBounds(0))
