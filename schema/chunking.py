"""How many inputs share one outbox entry: one message, one lease and one delete per chunk."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ChunkBounds:
    """Bounds of a kind's chunk size, and the time that one chunk should take."""

    minimum: int = 1
    maximum: int = 100
    target_slice_ms: float = 2_000.0
    safety: float = 0.8


def chunk_size(input_ms: float | None, bounds: ChunkBounds) -> int:
    """Give the chunk size for a kind whose inputs take ``input_ms`` on average.

    A kind that was never measured gets the maximum: its first chunks do the measuring.
    """
    if input_ms is None or input_ms <= 0:
        return bounds.maximum
    size = int(bounds.target_slice_ms / input_ms * bounds.safety)
    return max(bounds.minimum, min(bounds.maximum, size))
