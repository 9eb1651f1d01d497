"""What make hands on to the commands that ask a database."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from localstack import env_file

CHECKOUT = Path(__file__).resolve().parents[2]
# Stands where the interpreter of the checkout is; says what it was called with.
SAYING = '#!/bin/sh\necho "$DATABASE_URL $*"\n'
LOCAL, OTHER = "postgresql://127.0.0.1/local", "postgresql://127.0.0.1/other"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with its environment in place, so that nothing is installed."""
    shutil.copy(CHECKOUT / "Makefile", tmp_path)
    (tmp_path / "requirements-dev.lock").touch()
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(SAYING)
    python.chmod(0o755)
    (tmp_path / ".venv" / "complete").touch()
    return tmp_path


def make(checkout: Path, *arguments: str, **environment: str) -> str:
    kept = {"PATH": os.environ["PATH"]}
    done = subprocess.run(
        ["make", *arguments],
        cwd=checkout, env=kept | environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("CONSUMER=2", "CONSUMER is no option; the nearest is CONSUMERS. There are: MODE "),
        ("mode=outbox", "mode is no option. There are: MODE "),
    ],
)
def test_an_option_that_there_is_not_is_refused(checkout: Path, given: str, told: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as raised:
        make(checkout, "up", given)
    assert told in raised.value.stderr
    assert make(checkout, "up", "CONSUMERS=2", "HAULAGE_LOG_LEVEL=debug").endswith("--consumers 2")
    assert make(checkout, "sql", "Q=select 1").endswith("sql select 1")


def test_without_a_stack_the_story_and_the_doctor_say_how_to_start_it(checkout: Path) -> None:
    (checkout / ".venv" / "bin" / "python").write_text("#!/bin/sh\nexit 3\n")
    for arguments in (("doctor",), ("story", "JOB=J1")):
        with pytest.raises(subprocess.CalledProcessError) as raised:
            make(checkout, *arguments)
        assert "`make up` starts it" in raised.value.stderr
        with pytest.raises(subprocess.CalledProcessError) as raised:
            make(checkout, *arguments, DATABASE_URL=OTHER)
        assert "make up" not in raised.value.stderr


@pytest.mark.parametrize(
    ("arguments", "called"),
    [
        (("story", "ID=order-42"), "-m api.story -- order-42"),
        (("story", "JOB=J1", "INPUT=3"), "-m api.story --input 3 -- J1"),
        (("doctor", "JOB=J1"), "-m dispatcher.doctor --job J1"),
    ],
)
def test_the_story_and_the_doctor_ask_the_database_that_is_named_or_that_of_the_local_stack(
    checkout: Path, arguments: tuple[str, ...], called: str
) -> None:
    assert make(checkout, *arguments) == called
    env_file.write(checkout / ".local" / "env", {"DATABASE_URL": LOCAL})
    assert make(checkout, *arguments) == f"{LOCAL} {called}"
    assert make(checkout, *arguments, DATABASE_URL=OTHER) == f"{OTHER} {called}"
