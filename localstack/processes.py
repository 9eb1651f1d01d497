"""Starts, watches and ends processes that may outlive the one that started them.

A process is known by its `Identity` alone, which can be written down and read back: whoever
finds it later can tell the process from a stranger that was given the same pid.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from localstack.interruption import Interruption

_POLL_SECONDS = 0.03
_LOG_TAIL_LINES = 15
# Start times are derived from the wall clock, which may be set while a process lives.
_START_TOLERANCE_SECONDS = 60.0


class ProcessError(Exception):
    """A process died, failed or was not ready in time; the message ends with its last words."""


@dataclass(frozen=True, slots=True)
class Account:
    """Another user to run a process as; only root can ask for one."""

    name: str
    user_id: int
    group_id: int


@dataclass(frozen=True, slots=True)
class Identity:
    """One process for all time: pids are reused, the pair with start and command is not."""

    name: str
    pid: int
    started_at: float
    command: tuple[str, ...]
    log: str
    port: int = 0

    @property
    def listens(self) -> bool:
        """True while it, or a process that it started, listens on its port; or if it has none.

        Then what answers there is nobody else.
        """
        return self.port in self.listening_ports() if self.port else self.is_alive

    def listening_ports(self) -> list[int]:
        """The TCP ports that it, or a process that it started, listens on."""
        found: set[int] = set()
        process = self._process()
        with suppress(psutil.Error):
            for one in [process, *process.children(recursive=True)] if process else ():
                found |= _listening_ports(one)
        return sorted(found)

    @property
    def is_alive(self) -> bool:
        """True while this very process runs."""
        return self._process() is not None

    def send(self, number: signal.Signals) -> None:
        """Signals the process if it is still this one; a stranger is never signalled."""
        process = self._process()
        if process is not None:
            try:
                process.send_signal(number)
            except psutil.NoSuchProcess:
                return

    def _process(self) -> psutil.Process | None:
        try:
            process = psutil.Process(self.pid)
            same = (
                _runs(process)
                and abs(process.create_time() - self.started_at) < _START_TOLERANCE_SECONDS
                and (_command(process) or self.command) == self.command
            )
        except psutil.Error:
            return None
        return process if same else None


# How our children ended, which the system tells only once: to whoever collects them.
_exit_codes: dict[Identity, int] = {}


def identify(name: str, pid: int, log: Path, port: int = 0) -> Identity | None:
    """The identity of a running process, None when there is no such process."""
    try:
        process = psutil.Process(pid)
        if not _runs(process):
            return None
        return Identity(name, pid, process.create_time(), _command(process), str(log), port)
    except psutil.Error:
        return None


def _listening_ports(process: psutil.Process) -> set[int]:
    try:
        connections = process.net_connections(kind="tcp")
    except psutil.Error:
        return set()  # it ends this moment
    listening = (it for it in connections if it.status == psutil.CONN_LISTEN)
    return {it.laddr.port for it in listening if it.laddr}


def _runs(process: psutil.Process) -> bool:
    # What is dead but not collected is gone, unless a thread of it still holds files and ports.
    return process.status() != psutil.STATUS_ZOMBIE or process.num_threads() > 1


def _command(process: psutil.Process) -> tuple[str, ...]:
    """The command of a process; empty where threads have outlived its first, which showed it."""
    try:
        return tuple(process.cmdline())
    except psutil.ZombieProcess:
        return ()


def start(
    name: str,
    command: Sequence[str],
    *,
    log: Path,
    environment: Mapping[str, str],
    folder: Path,
    port: int = 0,
    account: Account | None = None,
    end_with_parent: bool = False,
) -> Identity:
    """Starts a process in a session of its own, its output appended to the log.

    The port is where it is going to listen, if somewhere: `Identity.listens` tells that it does.
    A terminal's Ctrl-C does not reach it: only `stop` ends it. With `end_with_parent` its
    standard input is a pipe that closes when we end, which a program may watch.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    given = _parent_pipe() if end_with_parent else os.open(os.devnull, os.O_RDONLY)
    with log.open("ab") as output, os.fdopen(given) as standard_input:
        child = subprocess.Popen(
            list(command),
            stdin=standard_input,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=dict(environment),
            start_new_session=True,
            user=account.user_id if account else None,
            group=account.group_id if account else None,
            extra_groups=[] if account else None,
        )
    # Between exec and the end of loading, a process shows no command line.
    identity = identify(name, child.pid, log, port)
    while child.poll() is None and (identity is None or not identity.command):
        time.sleep(_POLL_SECONDS / 10)
        identity = identify(name, child.pid, log, port)
    if identity is None or not identity.command:
        how = _manner(child.returncode)
        raise ProcessError(f"{name} ended{how} as soon as it was started.{last_words(log)}")
    if child.returncode is not None:
        _exit_codes[identity] = child.returncode
    # The handle is not kept: the process is watched and ended through its identity, like one
    # that an earlier run started. Without this, dropping the handle is a ResourceWarning.
    child.returncode = 0
    return identity


def _parent_pipe() -> int:
    """The reading end of a pipe whose writing end stays open in this process for its life."""
    reader, _ = os.pipe()
    return reader


def run(
    name: str,
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    folder: Path,
    interruption: Interruption,
    timeout_seconds: float = 120.0,
    given: str = "",
    account: Account | None = None,
) -> str:
    """Runs a short command to its end and returns what it printed; ended when we are."""
    interruption.check()
    with subprocess.Popen(
        list(command),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=dict(environment),
        start_new_session=True,
        user=account.user_id if account else None,
        group=account.group_id if account else None,
        extra_groups=[] if account else None,
    ) as child:
        deadline = time.monotonic() + timeout_seconds
        to_send: str | None = given
        try:
            while True:
                try:
                    output, errors = child.communicate(to_send, timeout=_POLL_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    to_send = None
                interruption.check()
                if time.monotonic() > deadline:
                    raise ProcessError(  # noqa: TRY301 the handler below ends the process
                        f"{name} did not end within {timeout_seconds:g} s."
                    )
        except BaseException:
            os.killpg(child.pid, signal.SIGKILL)
            raise
    if child.returncode != 0:
        tail = "\n".join(f"    {line}" for line in errors.splitlines()[-_LOG_TAIL_LINES:])
        raise ProcessError(f"{name} failed with exit code {child.returncode}:\n{tail}")
    return output


def wait_until(
    condition: Callable[[], bool],
    what: str,
    *,
    watching: Sequence[Identity],
    interruption: Interruption,
    timeout_seconds: float,
) -> None:
    """Returns once the condition holds; raises when it does not in time, or a process dies."""
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        for identity in watching:
            if is_gone(identity):
                raise ProcessError(obituary(identity))
        if time.monotonic() > deadline:
            words = last_words(Path(watching[0].log)) if watching else ""
            raise ProcessError(f"{what} not within {timeout_seconds:g} s.{words}")
        interruption.pause(_POLL_SECONDS)


def is_gone(identity: Identity) -> bool:
    """True when the process ended; collects it if it was our child."""
    try:
        # A child that died this moment may not be ours to collect yet: then it is not gone.
        collected, status = os.waitpid(identity.pid, os.WNOHANG)
    except ChildProcessError:
        # A process that an earlier run started is not our child, but init's to collect.
        return not identity.is_alive
    if collected == identity.pid:
        _exit_codes[identity] = os.waitstatus_to_exitcode(status)
    return collected == identity.pid


def obituary(identity: Identity) -> str:
    """Which process died, how if it was our child, and its last words."""
    how = _manner(_exit_codes.get(identity))
    return f"{identity.name} died{how}.{last_words(Path(identity.log))}"


def _manner(code: int | None) -> str:
    if code is None:
        return ""
    return f" by {signal.Signals(-code).name}" if code < 0 else f" with exit code {code}"


def stop(
    identities: Sequence[Identity],
    *,
    grace_seconds: float,
    number: signal.Signals = signal.SIGTERM,
) -> None:
    """Ends the processes together: the signal first, SIGKILL after the grace time."""
    for identity in identities:
        identity.send(number)
    if not _all_gone_within(identities, grace_seconds):
        for identity in identities:
            identity.send(signal.SIGKILL)
        _all_gone_within(identities, 10.0)


def _all_gone_within(identities: Sequence[Identity], seconds: float) -> bool:
    # Not interruptible: a second Ctrl-C must not leave half of the stack running.
    deadline = time.monotonic() + seconds
    while any(not is_gone(identity) for identity in identities):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def last_words(log: Path) -> str:
    """The end of a log, indented and introduced, to close an error message with."""
    try:
        lines = log.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:]
    except OSError:
        return ""
    if not lines:
        return f" It wrote nothing to {log}."
    return "\n".join([f" The end of {log}:", *(f"    {line}" for line in lines)])
