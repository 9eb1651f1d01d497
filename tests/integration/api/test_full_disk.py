"""A disk that takes no more of a large submission: a clear answer, a line, and nothing left."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.integration.api.conftest import notes
from tests.integration.api.test_streaming import LINES, lines
from tests.integration.faults.stations import log_lines, named
from tests.platform import Platform


@contextmanager
def no_file_above(size_bytes: int) -> Iterator[None]:
    """Let the system refuse whatever would make a file of this process larger."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def open_scratches() -> list[str]:
    """Give the files without a name that this process has open."""
    links = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            links.append(str(link.readlink()))
        except FileNotFoundError:
            continue  # the one by which the folder is read
    return [name for name in links if name.endswith("(deleted)") and "pymp" not in name]


MANY = 60_000
BODY = lines(MANY)


# The first megabyte does not fit, the rest does not, or the very last byte.
@pytest.mark.parametrize("room_bytes", [0, 70_000, 1_100_000, len(BODY) - 1])
async def test_a_submission_that_the_disk_cannot_take_is_refused_whole_and_told(
    client: httpx.AsyncClient, platform: Platform, room_bytes: int
) -> None:
    before = open_scratches()
    with log_lines() as told, no_file_above(room_bytes):
        refused = await client.post("/jobs", content=BODY, headers=LINES)
        small = await client.post("/jobs", json=notes(3))
        below_a_megabyte = await client.post("/jobs", content=lines(5_000), headers=LINES)
    assert refused.status_code == 503
    assert refused.json()["type"] == "urn:haulage:problem:unavailable"
    assert "no room" in refused.json()["detail"]
    assert int(refused.headers["retry-after"]) > 2
    (line,) = named(told, "submission.no_room")
    assert line["log_level"] == "error"
    assert line["folder"]
    assert "TMPDIR" in line["remedy"]
    assert open_scratches() == before
    assert small.status_code == 202, "what needs no file is taken all the same"
    assert below_a_megabyte.status_code == 202
    assert (await client.post("/jobs", content=BODY, headers=LINES)).status_code == 202
    jobs = await platform.rows("SELECT total FROM job ORDER BY total")
    assert [job.total for job in jobs] == [3, 5_000, MANY]
