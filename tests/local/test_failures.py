"""Why a stack is ended is said before it is, which takes a while."""

import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from localstack import children, processes
from localstack.failures import Told
from localstack.interruption import Interruption
from localstack.processes import Identity
from localstack.settings import LocalSettings
from localstack.stack import Stack


def test_who_died_and_how_is_said_before_the_others_are_ended(tmp_path: Path) -> None:
    stack = Stack(tmp_path, LocalSettings(), Interruption())

    def start(name: str, script: str) -> Identity:
        identity = processes.start(
            name,
            [sys.executable, "-c", script],
            log=tmp_path / f"{name}.log",
            environment={},
            folder=tmp_path,
        )
        stack.state.record(identity)
        return identity

    api = start("api", "import signal; signal.pause()")
    start("consumer-1", "print('no such bucket'); raise SystemExit(70)")
    terminal = StringIO()
    with (
        redirect_stdout(terminal),
        redirect_stderr(terminal),
        pytest.raises(Told),
        stack.ended_afterwards(),
    ):
        stack.watch()
    said = terminal.getvalue()
    assert said.count("consumer-1 died with exit code 70.") == 1
    assert said.index("died") < said.index("no such bucket") < said.index(children.STOPPING)
    assert processes.is_gone(api)
