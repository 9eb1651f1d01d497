"""How many inputs share one outbox entry: one message, one lease and one delete per chunk."""

from __future__ import annotations

from dataclasses import dataclass

from schema.limits import MOST_CHUNK_INPUTS, check_positive, check_whole

# How many inputs of a kind share a chunk before it is known how long they take.
AT_FIRST = 100


@dataclass(frozen=True, slots=True)
class ChunkBounds:
    """Bounds of a kind's chunk size, and the time that one chunk should take."""

    minimum: int = 1
    maximum: int = 1_000
    target_slice_ms: float = 2_000.0
    safety: float = 0.8

    def __post_init__(self) -> None:
        check_whole("chunk minimum", self.minimum, least=1, most=MOST_CHUNK_INPUTS)
        check_whole("chunk maximum", self.maximum, least=self.minimum, most=MOST_CHUNK_INPUTS)
        check_positive("chunk target_slice_ms", self.target_slice_ms)
        check_positive("chunk safety", self.safety)


def chunk_size(input_ms: float | None, bounds: ChunkBounds) -> int:
    """Give the chunk size for a kind whose inputs take ``input_ms``, above 0, on average.

    A kind that was never measured gets ``AT_FIRST`` within its bounds: its first chunks do the
    measuring.
    """
    size = AT_FIRST
    if input_ms is not None:
        size = int(bounds.target_slice_ms / input_ms * bounds.safety)
    return max(bounds.minimum, min(bounds.maximum, size))
