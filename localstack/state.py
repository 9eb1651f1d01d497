"""What the stack wrote down about itself, for whoever comes after it: `.local/state.json`."""

import fcntl
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from localstack import processes
from localstack.interruption import Interruption
from localstack.processes import Identity


class State:
    """The processes that were started and not yet ended, and who watches over them."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "state.json"
        self._lock_path = folder / "lock"
        self._guard = threading.Lock()

    @contextmanager
    def alone(self, interruption: Interruption) -> Iterator[None]:
        """Nobody else starts or stops the stack meanwhile; the lock ends with its process."""
        self._lock_path.parent.mkdir(parents=True, exist_ok=True)
        with self._lock_path.open("w") as lock_file:
            if not _lock(lock_file.fileno()):
                print("Another make starts or stops the stack; waiting for it ...", flush=True)
                while not _lock(lock_file.fileno()):
                    interruption.pause(0.1)
            yield

    def record(self, identity: Identity) -> None:
        """Add a process; call it before anything that may fail."""
        with self._guard:
            supervisor, recorded = self._read()
            kept = [other for other in recorded if other.name != identity.name]
            self._write(supervisor, [*kept, identity])

    def supervise(self) -> None:
        """Record this process as the one to ask when the stack shall stop."""
        with self._guard:
            myself = processes.identify("supervisor", os.getpid(), self._path)
            self._write(myself, self._read()[1])

    def leave(self) -> None:
        """Record that nobody watches the processes any more."""
        with self._guard:
            self._write(None, self._read()[1])

    def supervisor(self) -> Identity | None:
        """The living process that watches over the stack, if there is one and it is not us."""
        found = self._read()[0]
        return found if found and found.pid != os.getpid() and found.is_alive else None

    def processes(self) -> list[Identity]:
        """Every recorded process, alive or not, in the order of their start."""
        return self._read()[1]

    def clear(self) -> None:
        """Forget everything; nothing runs any more."""
        self._path.unlink(missing_ok=True)

    def _read(self) -> tuple[Identity | None, list[Identity]]:
        try:
            content = json.loads(self._path.read_text())
            watcher = content["supervisor"]
            return (
                _identity(watcher) if watcher else None,
                [_identity(fields) for fields in content["processes"]],
            )
        except (FileNotFoundError, ValueError, LookupError, TypeError):
            # Not there, or not as it is written here: nothing is known of any process.
            return None, []

    def _write(self, supervisor: Identity | None, recorded: list[Identity]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        content = {
            "supervisor": asdict(supervisor) if supervisor else None,
            "processes": [asdict(identity) for identity in recorded],
        }
        unfinished = self._path.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(content, indent=1))
        unfinished.replace(self._path)


def _identity(fields: dict[str, object]) -> Identity:
    command = fields["command"]
    if not isinstance(command, list):
        raise TypeError(command)
    return Identity(
        name=str(fields["name"]),
        pid=int(str(fields["pid"])),
        started_at=float(str(fields["started_at"])),
        command=tuple(str(word) for word in command),
        log=str(fields["log"]),
        port=int(str(fields.get("port", 0))),
    )


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
