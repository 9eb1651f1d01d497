"""A submission on its way from its body to the database, of which few inputs are in memory."""

from __future__ import annotations

import hashlib
from typing import IO, TYPE_CHECKING

from api.models import JobFields
from api.problems import Problem
from api.submission import Document

if TYPE_CHECKING:
    from collections.abc import Mapping

    from api.inputs import Limits
    from api.submission import Submission
    from schema.kinds import Kind

# The first block is small, so that whoever writes it can begin early; larger ones cost less.
_FIRST_BLOCK_CHARACTERS = 32 * 1024
_LARGEST_BLOCK_CHARACTERS = 256 * 1024
# One statement would hold what was gathered several times over. Inputs as large as the default
# limit allows come to no more than this.
_MOST_GATHERED_CHARACTERS = 32 * 1024 * 1024


class KindCameLast(Exception):
    """The kind stood behind the inputs, and is not what they were taken for: read again."""


class Reading:
    """Reads a body, some inputs at a time. Memory does not grow with them, but for the gathered.

    These are fewer than ``enough``, or hardly more. Not for several threads at once. With
    ``digests``, it can name the request once all is read.
    """

    def __init__(
        self,
        body: IO[bytes],
        kinds: Mapping[str, Kind],
        limits: Limits,
        *,
        by_lines: bool,
        enough: int,
        digests: bool,
    ) -> None:
        self._body, self._kinds, self._limits = body, kinds, limits
        self._by_lines, self._enough, self._digests = by_lines, enough, digests
        self._begin(JobFields.model_fields["kind"].default)

    def _begin(self, kind_name: str) -> None:
        self._body.seek(0)
        self._digest = hashlib.sha256() if self._digests else None
        self._document = Document(
            self._body, self._kinds, self._limits, kind_name, self._by_lines, self._digest
        )
        self._pieces = self._document.read()
        self._gathered: list[str] = []
        self._problem: Problem | None = None
        self.has_given = False
        self._enough_characters = _FIRST_BLOCK_CHARACTERS
        # Once all is read, and sound.
        self.submission: Submission | None = None

    def begin_again(self) -> None:
        """Forget what was read, but for the kind."""
        self._begin(self._document.kind_name)

    def gather(self) -> None:
        """Read until ``enough`` inputs are at hand, or all; raise what names everything wrong.

        When it returns, all that was read is sound; ``submission`` is there if that is all.
        """
        characters = 0
        for bodies in self._pieces:
            self._gathered += bodies
            characters += sum(map(len, bodies))
            if len(self._gathered) >= self._enough or characters >= _MOST_GATHERED_CHARACTERS:
                if self._document.is_sound:
                    return
                # Nothing of it will be stored: what follows is judged, and held by nobody.
                self._gathered.clear()
                break
        try:
            self.finish()
        except KindCameLast:
            self.gather_again()
        assert self._gathered or self.submission is None, "what is not sound stays so"

    def gather_again(self) -> None:
        """Do it anew, now that the kind is known."""
        self.begin_again()
        self.gather()

    def gathered(self) -> list[str]:
        """Give the texts of the inputs at hand."""
        return self._gathered

    @property
    def kind(self) -> Kind:
        """Give the kind that the gathered inputs are taken for."""
        return self._kinds[self._document.kind_name]

    @property
    def is_sound(self) -> bool:
        """Say whether nothing was wrong with any input so far, or the text around them."""
        return self._problem is None and not self._document.bad.count

    def block(self) -> list[str]:
        """Give the texts of the next inputs, those at hand first.

        There are none at the end, and none from the first on that is not ``is_sound``: nothing
        is raised before ``finish``.
        """
        self.has_given = True
        block, self._gathered = self._gathered, []
        characters = sum(map(len, block))
        try:
            while characters < self._enough_characters:
                bodies = next(self._pieces, [])
                if not bodies:
                    break
                block += bodies
                characters += sum(map(len, bodies))
        except Problem as problem:
            self._problem = problem
        self._enough_characters = min(2 * self._enough_characters, _LARGEST_BLOCK_CHARACTERS)
        return block if self.is_sound else []

    def finish(self) -> Submission:
        """Read what is left; raise what names everything wrong, or ``KindCameLast``."""
        if self._problem is not None:
            raise self._problem
        for _ in self._pieces:
            pass
        if self._document.is_misread:
            raise KindCameLast
        self.submission = self._document.submission()
        return self.submission

    def digest(self) -> bytes:
        """Name the request by what it asks for, whatever its white space and order of names."""
        assert self._digest is not None, "asked for at the beginning"
        assert self.submission is not None, "all is read"
        digest = self._digest.copy()
        digest.update(self.submission.asked())
        return digest.digest()
