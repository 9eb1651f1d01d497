"""Which kinds there are, and which of them a consumer works on."""

import pytest

from infra.kinds import choose_kinds, load_kinds
from schema.errors import Misconfigured


def test_a_consumer_works_on_all_kinds_unless_some_are_chosen() -> None:
    kinds = load_kinds("tests.plugin_example.noop:NOOP")
    assert set(choose_kinds(kinds, "")) == set(kinds)
    assert set(choose_kinds(kinds, " noop ,")) == {"noop"}


def test_choosing_an_unknown_kind_stops_the_start_and_names_the_known_ones() -> None:
    with pytest.raises(Misconfigured, match="invoice is no kind; there are: export"):
        choose_kinds(load_kinds(""), "export,invoice")
