import json
import tempfile
import tracemalloc

from api.inputs import Limits
from api.reading import Reading
from schema.kinds import JobInput, Kind


class Note(JobInput):
    text: str


KINDS = {"note": Kind("note", Note, "unused:unused")}
MANY = 20_000


def test_memory_does_not_grow_with_what_is_read_by_blocks() -> None:
    with tempfile.TemporaryFile() as body:
        body.write(b'{"kind":"note"}\n')
        for number in range(MANY):
            body.write(json.dumps({"text": f"{number} \\ {'x' * 1_000}"}).encode() + b"\n")
        reading = Reading(
            body, KINDS, Limits(1, 10_000, MANY), by_lines=True, enough=2_000, digests=True
        )
        many = 0
        tracemalloc.start()
        try:
            reading.gather()
            while block := reading.block():
                many += block.count("\n") + 1
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert many == reading.finish().many_inputs == MANY
        assert body.tell() > 20_000_000
        # What was gathered at first and the window, each several times over, and what finds
        # duplicates, for each input.
        assert peak_bytes < 10_000_000 + 120 * MANY
