"""Checked inputs on their way to the database: few in memory, many in a temporary file."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Self

from api.scratch import discard, open_scratch, scratching

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# So much is kept before it is written, and read again at once.
_BLOCK_CHARACTERS = 256 * 1024


class Spool:
    """Inputs as canonical JSON, in order. Memory does not grow with their number.

    Not for several threads at once; closing it removes the file.
    """

    def __init__(self) -> None:
        self.many = 0
        self._recent: list[str] = []
        self._characters = 0
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def add(self, inputs: Sequence[str]) -> None:
        """Add inputs; none holds a line break, which JSON escapes.

        Raise the ``Problem`` to answer when there is no room for them.
        """
        self.many += len(inputs)
        self._recent += inputs
        self._characters += sum(map(len, inputs))
        if self._characters < _BLOCK_CHARACTERS:
            return
        with scratching():
            if self._file is None:
                self._file = open_scratch()
            self._file.write(_lines(self._recent))
            # Now, not when they are read again: by then a transaction is open.
            self._file.flush()
        self._recent.clear()
        self._characters = 0

    def clear(self) -> None:
        """Forget all of them."""
        self.many = self._characters = 0
        self._recent.clear()
        if self._file is not None:
            discard(self._file)
            self._file = None

    def blocks(self) -> Iterator[bytes]:
        """Give all of them from the first on, in blocks of whole lines, each ended by a break."""
        if self._file is not None:
            self._file.seek(0)
            while block := _lines_of(self._file):
                yield block
        if self._recent:
            yield _lines(self._recent)

    def texts(self) -> list[str]:
        """Give all of them at once: for those that are few."""
        if self._file is None:
            return self._recent
        return [line for block in self.blocks() for line in block.decode().split("\n")[:-1]]


def _lines_of(file: IO[bytes]) -> bytes:
    with scratching():
        block = file.read(_BLOCK_CHARACTERS)
        return block + file.readline()


def _lines(inputs: list[str]) -> bytes:
    return ("\n".join(inputs) + "\n").encode()
