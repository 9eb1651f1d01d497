"""How many inputs share a chunk follows how long they take, within the bounds of their kind."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schema.chunking import AT_FIRST, ChunkBounds, chunk_size


@pytest.mark.parametrize(
    ("input_ms", "size"),
    [(0.001, 1_000), (1.6, 1_000), (2, 800), (16, 100), (1_000, 1), (1_600, 1), (86_400_000, 1)],
)
def test_a_chunk_takes_a_slice_of_time_where_its_bounds_allow(input_ms: float, size: int) -> None:
    assert chunk_size(input_ms, ChunkBounds()) == size


@pytest.mark.parametrize(
    ("bounds", "size"),
    [
        (ChunkBounds(), AT_FIRST),
        (ChunkBounds(minimum=AT_FIRST + 1), AT_FIRST + 1),
        (ChunkBounds(maximum=1), 1),
    ],
)
def test_a_kind_that_was_never_measured_begins_with_few(bounds: ChunkBounds, size: int) -> None:
    assert chunk_size(None, bounds) == size


@given(
    st.floats(min_value=1e-6, max_value=1e9),
    st.integers(1, 10_000),
    st.integers(1, 10_000),
    st.floats(min_value=1, max_value=1e6),
)
def test_it_keeps_to_its_bounds_and_above_the_least_to_its_slice(
    input_ms: float, one: int, other: int, slice_ms: float
) -> None:
    least, most = sorted((one, other))
    bounds = ChunkBounds(minimum=least, maximum=most, target_slice_ms=slice_ms)
    size = chunk_size(input_ms, bounds)
    assert least <= size <= most
    assert size == least or size * input_ms <= slice_ms
