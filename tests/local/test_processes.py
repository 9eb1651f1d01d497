"""Starting, watching and ending processes."""

import dataclasses
import os
import signal
import socket
import sys
import threading
from pathlib import Path

import psutil
import pytest

from localstack import processes
from localstack.interruption import Interrupted, Interruption
from localstack.processes import Identity, ProcessError

STUBBORN = """
import signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
signal.pause()
"""
POLITE = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: (print("bye", flush=True), sys.exit(0)))
print("up", flush=True)
signal.pause()
"""


def start(script: str, log: Path) -> Identity:
    return processes.start(
        "script",
        [sys.executable, "-c", script],
        log=log,
        environment={},
        folder=log.parent,
    )


def wait_for_text(text: str, identity: Identity, interruption: Interruption) -> None:
    processes.wait_until(
        lambda: text in Path(identity.log).read_text(),
        f"no {text!r}",
        watching=[identity],
        interruption=interruption,
        timeout_seconds=20,
    )


@pytest.mark.parametrize(("script", "last"), [(POLITE, "bye"), (STUBBORN, "up")])
def test_stop_asks_first_and_then_insists(script: str, last: str, tmp_path: Path) -> None:
    identity = start(script, tmp_path / "log")
    wait_for_text("up", identity, Interruption())
    processes.stop([identity], grace_seconds=5.0 if script is POLITE else 0.1)
    assert processes.is_gone(identity)
    assert (tmp_path / "log").read_text().split()[-1] == last


def test_a_process_has_a_session_of_its_own(tmp_path: Path) -> None:
    identity = start(POLITE, tmp_path / "log")
    try:
        assert os.getsid(identity.pid) == identity.pid
    finally:
        processes.stop([identity], grace_seconds=5)


def test_an_early_death_shows_the_last_words(tmp_path: Path) -> None:
    identity = start("print('no such table'); raise SystemExit(3)", tmp_path / "log")
    with pytest.raises(ProcessError, match=r"script died with exit code 3\.[^$]*no such table"):
        wait_for_text("never", identity, Interruption())


def test_a_death_by_a_signal_names_it(tmp_path: Path) -> None:
    identity = start(POLITE, tmp_path / "log")
    wait_for_text("up", identity, Interruption())
    identity.send(signal.SIGKILL)
    with pytest.raises(ProcessError, match=r"script died by SIGKILL\."):
        wait_for_text("never", identity, Interruption())


def test_a_stranger_with_the_same_pid_is_not_signalled(tmp_path: Path) -> None:
    identity = start(POLITE, tmp_path / "log")
    wait_for_text("up", identity, Interruption())
    older = dataclasses.replace(identity, started_at=identity.started_at - 3600)
    other = dataclasses.replace(identity, command=("postgres",))
    try:
        for stranger in (older, other):
            assert not stranger.is_alive
            stranger.send(signal.SIGKILL)
        assert identity.is_alive
    finally:
        processes.stop([identity], grace_seconds=5)


def test_a_wait_ends_at_once_when_interrupted_from_another_thread(
    tmp_path: Path,
) -> None:
    identity = start(POLITE, tmp_path / "log")
    interruption = Interruption()
    threading.Timer(0.05, interruption.request).start()
    try:
        with pytest.raises(Interrupted):
            wait_for_text("never", identity, interruption)
    finally:
        processes.stop([identity], grace_seconds=5)


def test_a_command_returns_what_it_printed_or_fails_with_what_it_complained_of(
    tmp_path: Path,
) -> None:
    def run(script: str, given: str = "") -> str:
        return processes.run(
            "the script",
            [sys.executable, "-c", script],
            environment={},
            folder=tmp_path,
            interruption=Interruption(),
            given=given,
        )

    assert run("print(input().upper())", given="key\n") == "KEY\n"
    with pytest.raises(ProcessError, match=r"the script failed with exit code 1:[^$]*ValueError"):
        run("raise ValueError")


LISTENING = """
import os, signal, socket
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
"""
# A child of it holds the port alone.
LEAVING_IT_TO_A_CHILD = """
if os.fork():
    server.close()
    print("left", flush=True)
"""


@pytest.mark.parametrize("more", ["", LEAVING_IT_TO_A_CHILD])
def test_only_who_listens_itself_or_has_a_child_that_does_listens(
    more: str, tmp_path: Path
) -> None:
    identity = start(f"{LISTENING}{more}signal.pause()", tmp_path / "log")
    stranger = start(POLITE, tmp_path / "other")
    try:
        wait_for_text("left" if more else "\n", identity, Interruption())
        port = int((tmp_path / "log").read_text().split()[0])
        assert identity.listening_ports() == [port]
        assert dataclasses.replace(identity, port=port).listens
        assert not dataclasses.replace(stranger, port=port).listens
        assert stranger.listens  # nothing is said of where it should
    finally:
        started = psutil.Process(identity.pid).children()
        processes.stop([identity, stranger], grace_seconds=5)
        for child in started:
            child.kill()
    assert not dataclasses.replace(identity, port=port).listens


# Its first thread ends, and another holds the port: it shows itself dead, without a command.
OUTLIVED = """
import ctypes, socket, threading
server = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=server.accept).start()
print(server.getsockname()[1], flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_process_whose_first_thread_ended_is_alive_until_its_last_one_has(tmp_path: Path) -> None:
    identity = start(OUTLIVED, tmp_path / "log")
    wait_for_text("\n", identity, Interruption())
    shown = psutil.Process(identity.pid)
    processes.wait_until(
        lambda: sys.platform == "darwin" or shown.status() == psutil.STATUS_ZOMBIE,
        "its first thread still runs",
        watching=[],
        interruption=Interruption(),
        timeout_seconds=20,
    )
    assert identity.is_alive
    processes.stop([identity], grace_seconds=10)
    assert not identity.is_alive
    with socket.create_server(("127.0.0.1", int(Path(identity.log).read_text()))):
        pass
