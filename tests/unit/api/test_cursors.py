import base64
import datetime as dt
import struct
from functools import partial
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.chronicle import BUCKETS, Bookmark
from api.cursors import CursorOf
from api.problems import Problem
from schema.statements.story import Place

times = st.datetimes(timezones=st.just(dt.UTC))
JOBS = CursorOf("jobs", ("owner", None))
LETTERS = CursorOf("dlq", ("owner", None))
PARKED = CursorOf("parked", ())
STORY = CursorOf("timeline", ("J20260110_000777", None))
INPUTS = CursorOf("inputs", ("J20260110_000777", None))


@given(times, st.uuids())
def test_a_place_among_jobs_survives_the_round_trip(time: dt.datetime, job: UUID) -> None:
    assert JOBS.job(JOBS.after_job(time, job)) == (time, job)


@given(st.integers(0, 2**31 - 1))
def test_a_place_among_inputs_survives_the_round_trip(ordinal: int) -> None:
    assert INPUTS.ordinal(INPUTS.after_ordinal(ordinal)) == ordinal


@given(times, st.uuids(), st.integers(0, 2**31 - 1))
def test_a_place_among_dead_letters_survives_the_round_trip(
    time: dt.datetime, job: UUID, ordinal: int
) -> None:
    assert LETTERS.letter(LETTERS.after_letter(time, job, ordinal)) == (time, job, ordinal)


@given(st.integers(0, 2), st.integers(0, 2**63 - 1))
def test_a_place_among_parts_survives_the_round_trip(part: int, row_id: int) -> None:
    cursor = PARKED.after_row(part, row_id)
    assert PARKED.row(cursor, parts=3) == (part, row_id)
    with pytest.raises(Problem):
        PARKED.row(cursor, parts=part)


@given(
    times,
    st.uuids(),
    times,
    st.integers(0, 2**31 - 1),
    st.sampled_from((None, *BUCKETS)),
    st.data(),
)
def test_a_place_in_a_story_survives_the_round_trip(
    begun: dt.datetime,
    job: UUID,
    at: dt.datetime,
    first: int,
    bucket: str | None,
    data: st.DataObject,
) -> None:
    rank, ordinal, n = (
        data.draw(st.integers(0, 14)),
        data.draw(st.integers(-1, 2**31 - 1)),
        data.draw(st.integers(-(2**63), 2**63 - 1)),
    )
    mark = Bookmark(begun, job, Place(at, rank, ordinal, n), first, bucket)
    assert STORY.step(STORY.after_step(mark)) == mark


@pytest.mark.parametrize(("first", "bucket"), [(-1, 0), (0, len(BUCKETS) + 1)])
def test_a_place_that_no_story_has_is_refused(first: int, bucket: int) -> None:
    raw = struct.pack(">q16siBqBiq", 0, bytes(16), first, bucket, 0, 0, 0, 0)
    with pytest.raises(Problem):
        STORY.step(STORY._encode(raw))


@given(st.text() | st.binary().map(lambda raw: base64.urlsafe_b64encode(raw).decode().rstrip("=")))
def test_whatever_we_did_not_write_is_refused(cursor: str) -> None:
    for read in (
        JOBS.job,
        INPUTS.ordinal,
        LETTERS.letter,
        STORY.step,
        partial(PARKED.row, parts=3),
    ):
        with pytest.raises(Problem) as caught:
            read(cursor)
        assert caught.value.status == 400


@given(times, st.uuids(), st.data())
def test_a_cursor_with_one_character_changed_is_refused(
    time: dt.datetime, job: UUID, data: st.DataObject
) -> None:
    cursor = JOBS.after_job(time, job)
    at = data.draw(st.integers(0, len(cursor) - 1))
    other = data.draw(st.characters(min_codepoint=33, max_codepoint=126))
    changed = cursor[:at] + other + cursor[at + 1 :]
    if changed != cursor:
        with pytest.raises(Problem):
            JOBS.job(changed)


@pytest.mark.parametrize("change", ["{}!", "{}=", "{}A", " {}", "1", "", "{}\n"])
def test_additions_to_a_cursor_are_refused(change: str) -> None:
    cursor = INPUTS.after_ordinal(7)
    with pytest.raises(Problem):
        INPUTS.ordinal(change.format(cursor))


def test_a_cursor_of_another_list_or_other_filters_is_refused() -> None:
    cursor = INPUTS.after_ordinal(7)
    for other in (CursorOf("inputs", ("J20260110_000778", None)), CursorOf("inputs", ("x", "DLQ"))):
        with pytest.raises(Problem):
            other.ordinal(cursor)
    with pytest.raises(Problem):
        JOBS.job(cursor)
