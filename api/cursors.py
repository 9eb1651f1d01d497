"""Opaque cursors: each belongs to one list with one set of filters, and is checked to the bit."""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import hashlib
import struct
from http import HTTPStatus
from typing import TYPE_CHECKING
from uuid import UUID

from api.chronicle import BUCKETS, Bookmark
from api.problems import BadField, Problem
from schema.statements.story import Place

if TYPE_CHECKING:
    from collections.abc import Sequence

_VERSION = b"\x01"
_CHECK_BYTES = 8
_LONGEST = 128
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)
_JOB = struct.Struct(">q16s")
_ORDINAL = struct.Struct(">i")
_LETTER = struct.Struct(">q16si")
_ROW = struct.Struct(">Bq")
_STEP = struct.Struct(">q16siBqBiq")
# As a cursor writes them, by their numbers.
_BUCKETS = (None, *BUCKETS)


class CursorOf:
    """The cursors of one list: ``name`` and ``filters`` say which (the page size may change)."""

    def __init__(self, name: str, filters: Sequence[object]) -> None:
        self._list = hashlib.sha256(
            repr((name, *filters)).encode("utf-8", "backslashreplace")
        ).digest()

    def after_job(self, requested_at: dt.datetime, job_id: UUID) -> str:
        """Point behind a job of a list in order of (requested_at, id)."""
        return self._encode(_JOB.pack((requested_at - _EPOCH) // _MICROSECOND, job_id.bytes))

    def job(self, cursor: str) -> tuple[dt.datetime, UUID]:
        """Read what ``after_job`` wrote for this very list; refuse all else."""
        try:
            microseconds, job_id = _JOB.unpack(self._decode(cursor))
            return _EPOCH + microseconds * _MICROSECOND, UUID(bytes=job_id)
        except (struct.error, OverflowError):
            raise _foreign() from None

    def after_ordinal(self, ordinal: int) -> str:
        """Point behind an input of a list in order of ordinals."""
        return self._encode(_ORDINAL.pack(ordinal))

    def ordinal(self, cursor: str) -> int:
        """Read what ``after_ordinal`` wrote for this very list; refuse all else."""
        try:
            (ordinal,) = _ORDINAL.unpack(self._decode(cursor))
        except struct.error:
            raise _foreign() from None
        if ordinal < 0:
            raise _foreign()
        return int(ordinal)

    def after_letter(self, died_at: dt.datetime, job_id: UUID, ordinal: int) -> str:
        """Point behind a dead letter of a list in order of (died_at, job, ordinal)."""
        microseconds = (died_at - _EPOCH) // _MICROSECOND
        return self._encode(_LETTER.pack(microseconds, job_id.bytes, ordinal))

    def letter(self, cursor: str) -> tuple[dt.datetime, UUID, int]:
        """Read what ``after_letter`` wrote for this very list; refuse all else."""
        try:
            microseconds, job_id, ordinal = _LETTER.unpack(self._decode(cursor))
            return _EPOCH + microseconds * _MICROSECOND, UUID(bytes=job_id), ordinal
        except (struct.error, OverflowError):
            raise _foreign() from None

    def after_row(self, part: int, row_id: int) -> str:
        """Point behind a row of one of the parts of a list, each in order of ids."""
        return self._encode(_ROW.pack(part, row_id))

    def row(self, cursor: str, *, parts: int) -> tuple[int, int]:
        """Read what ``after_row`` wrote for this very list of ``parts``; refuse all else."""
        try:
            part, row_id = _ROW.unpack(self._decode(cursor))
        except struct.error:
            raise _foreign() from None
        if part >= parts:
            raise _foreign()
        return part, row_id

    def after_step(self, mark: Bookmark) -> str:
        """Point behind a step of a story."""
        at, rank, ordinal, n = mark.place
        begun = (mark.requested_at - _EPOCH) // _MICROSECOND
        happened = (at - _EPOCH) // _MICROSECOND
        story = (begun, mark.job_id.bytes, mark.first, _BUCKETS.index(mark.bucket))
        return self._encode(_STEP.pack(*story, happened, rank, ordinal, n))

    def step(self, cursor: str) -> Bookmark:
        """Read what ``after_step`` wrote for this very story; refuse all else."""
        try:
            begun, job_id, first, bucket, *step = _STEP.unpack(self._decode(cursor))
            if first < 0:
                raise _foreign()
            happened, rank, ordinal, n = step
            place = Place(_EPOCH + happened * _MICROSECOND, rank, ordinal, n)
            requested_at = _EPOCH + begun * _MICROSECOND
            return Bookmark(requested_at, UUID(bytes=job_id), place, first, _BUCKETS[bucket])
        except (struct.error, OverflowError, IndexError):
            raise _foreign() from None

    def _check(self, place: bytes) -> bytes:
        return hashlib.sha256(self._list + place).digest()[:_CHECK_BYTES]

    def _encode(self, place: bytes) -> str:
        return _base64(_VERSION + self._check(place) + place)

    def _decode(self, cursor: str) -> bytes:
        if len(cursor) > _LONGEST or not cursor.isascii():
            raise _foreign()
        try:
            raw = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        except (binascii.Error, ValueError):
            raise _foreign() from None
        head = len(_VERSION) + _CHECK_BYTES
        place = raw[head:]
        # Python's decoder skips what it does not know; only what we would write is ours.
        if raw[:head] != _VERSION + self._check(place) or _base64(raw) != cursor:
            raise _foreign()
        return place


def _base64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")


def _foreign() -> Problem:
    detail = "not a cursor of this list with these filters"
    return Problem(
        HTTPStatus.BAD_REQUEST,
        "invalid-cursor",
        detail,
        errors=[BadField("parameter", "after", detail)],
    )
