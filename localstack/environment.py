"""Makes a virtual environment from a lock file: complete for exactly that lock, or not at all.

Only the standard library is used here, because this is what runs before anything is installed:
`python3 localstack/environment.py FOLDER LOCK`.
"""

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NEWEST_LOCALSTACK_PYTHON = 13  # the minor version; LocalStack 4.13 answers nothing on 3.14
_ROOT = Path(__file__).resolve().parent.parent
_STAMP = "complete"


class InstallError(Exception):
    """The environment could not be made; the message says what to do."""


def python_of(folder: Path) -> Path:
    """The interpreter of an environment."""
    return folder / "bin" / "python"


def is_complete(folder: Path, lock: Path) -> bool:
    """True only after every package of this very lock was installed, and nothing moved since."""
    try:
        stamp = (folder / _STAMP).read_text()
    except OSError:
        return False
    return stamp == _fingerprint(folder, lock) and python_of(folder).exists()


def install(folder: Path, lock: Path, python: str) -> bool:
    """Make the environment unless it is complete; true when something was installed."""
    folder = folder.resolve()
    with _one_at_a_time():
        if is_complete(folder, lock):
            (folder / _STAMP).touch()  # make compares times; a checkout may have touched the lock
            return False
        print(f"Installing {lock} into {_short(folder)} (once; some minutes) ...", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        _run([python, "-m", "venv", str(folder)], f"{python} could not make {folder}")
        pip = [
            str(python_of(folder)),
            "-m",
            "pip",
            "--disable-pip-version-check",
            "install",
        ]
        _run(
            [*pip, "--quiet", "--require-hashes", "--requirement", str(lock)],
            f"pip could not install {lock}; is there a way to a package index?",
        )
        # The stamp is written last, so that an interrupted installation is never taken for one.
        (folder / _STAMP).write_text(_fingerprint(folder, lock))
        return True


def localstack_python(root: Path) -> str:
    """An interpreter that LocalStack runs on: this one, or the newest suitable one on PATH."""
    if sys.version_info[:2] <= (3, NEWEST_LOCALSTACK_PYTHON):
        return sys.executable
    find = [str(root / "localstack" / "find-python"), str(NEWEST_LOCALSTACK_PYTHON)]
    found = subprocess.run(find, capture_output=True, text=True, check=False)
    if found.returncode != 0:
        message = f"LocalStack needs Python 3.11 to 3.{NEWEST_LOCALSTACK_PYTHON}. {found.stderr}"
        raise InstallError(message.strip())
    return found.stdout.strip()


def _fingerprint(folder: Path, lock: Path) -> str:
    # Scripts in an environment name its folder, so a moved checkout needs a new one.
    digest = hashlib.sha256(lock.read_bytes())
    digest.update(os.fsencode(folder.resolve()))
    return digest.hexdigest()


def _run(command: list[str], failure: str) -> None:
    outside = ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV")
    environment = {key: value for key, value in os.environ.items() if key not in outside}
    # In a session of its own, so that Ctrl-C reaches this process alone, which then ends it.
    child = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        returncode = child.wait()
    except BaseException:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        raise
    if returncode != 0:
        raise InstallError(failure)


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    path = _ROOT / ".local" / "installing"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock_file:
        fcntl.flock(lock_file, fcntl.LOCK_EX)
        yield


def _short(folder: Path) -> str:
    try:
        return str(folder.relative_to(Path.cwd()))
    except ValueError:
        return str(folder)


def main(arguments: list[str]) -> int:
    """Run the command."""
    folder, lock = (Path(argument) for argument in arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        install(folder, lock, sys.executable)
    except InstallError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(
            "\nInterrupted; the next make starts the installation again.",
            file=sys.stderr,
        )
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
