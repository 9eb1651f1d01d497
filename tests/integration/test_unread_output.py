"""Commands that ask the database, when nobody reads their answer."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize("command", [("api.story", "J20260110_000777"), ("dispatcher.doctor",)])
def test_a_command_that_nobody_reads_ends_quietly(
    database_url: str, command: tuple[str, ...]
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    # Unbuffered: the first word fails, while the database is in use.
    environment = {**os.environ, "DATABASE_URL": database_url, "PYTHONUNBUFFERED": "1"}
    with os.fdopen(writer) as output:
        ended = subprocess.run(
            [sys.executable, "-m", *command],
            stdout=output, stderr=subprocess.PIPE, text=True, env=environment, check=False,
        )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (141, "")
