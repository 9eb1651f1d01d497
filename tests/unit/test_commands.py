"""How a command ends when nobody reads what it prints."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
UNREAD = 141  # as a shell reports what SIGPIPE ended


def unread(*arguments: str) -> tuple[int, str]:
    """The exit code and the complaints of a command whose standard output nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    # Buffered, as for everybody: what was printed is written as the command ends.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with os.fdopen(writer) as output:
        ended = subprocess.run(
            [sys.executable, *arguments],
            stdout=output, stderr=subprocess.PIPE, text=True, cwd=CHECKOUT, env=environment,
            check=False,
        )  # fmt: skip
    return ended.returncode, ended.stderr


@pytest.mark.parametrize(
    "command",
    [
        ("localstack", "status"),
        ("api.story", "--help"),
        ("dispatcher.doctor", "--help"),
        ("api.keys", "--help"),
        ("infra.check", "--help"),
    ],
)
def test_a_command_that_nobody_reads_ends_quietly(command: tuple[str, ...]) -> None:
    assert unread("-m", *command) == (UNREAD, "")


def test_the_pipe_of_somebody_else_is_told() -> None:
    script = (
        "from infra.commands import exit_code_of\n"
        "def main(): raise BrokenPipeError('the server hung up')\n"
        "exit_code_of(main)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=CHECKOUT, check=False
    )
    assert ended.returncode == 1
    assert "the server hung up" in ended.stderr


@pytest.mark.parametrize(("ends", "code"), [("return 3", 3), ("raise SystemExit(2)", 2)])
def test_a_command_that_is_read_ends_with_its_own_code(ends: str, code: int) -> None:
    script = f"import sys\nfrom infra.commands import exit_code_of\ndef main(): {ends}\n"
    ended = subprocess.run(
        [sys.executable, "-c", f"{script}sys.exit(exit_code_of(main))"], cwd=CHECKOUT, check=False
    )
    assert ended.returncode == code
