"""Supervises one PostgreSQL cluster in a folder: makes it, starts it, adopts it, stops it."""

import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import psutil

from localstack import binaries, processes
from localstack.interruption import Interruption
from localstack.ports import free_port
from localstack.processes import Identity

# For clusters that are thrown away: a crash of the machine may cost the data. A crash of the
# server alone still may not, so that tests can count on what was committed.
DISPOSABLE = {"fsync": "off", "full_page_writes": "off"}

_ENVIRONMENT = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}
_START_SECONDS, _STOP_SECONDS = 60.0, 30.0
_SOCKET_PATH_BYTES = 100  # the system's limit is 104 to 108, with the terminating zero


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster that accepts connections: on TCP with the password, on the socket without.

    The socket's folder is closed to other users, which is what makes up for the password.
    """

    identity: Identity
    port: int
    socket_folder: str
    password: str
    was_adopted: bool

    def url(self, database: str = "postgres", user: str = "postgres") -> str:
        """A libpq URL over TCP; asyncpg takes it as it is."""
        return f"postgresql://{user}:{self.password}@127.0.0.1:{self.port}/{database}"

    def socket_url(self, database: str = "postgres", user: str = "postgres") -> str:
        """A libpq URL over the unix socket, for whoever may enter its folder."""
        host = quote(self.socket_folder, safe="")
        return f"postgresql://{user}@/{database}?host={host}&port={self.port}"


class Postgres:
    """One cluster in one folder, whoever started it."""

    def __init__(self, home: Path, *, log: Path, server_folder: Path | None = None) -> None:
        self._account = binaries.server_account()
        self._place = home.absolute()
        self._home = binaries.enterable_folder(self._place, self._account)
        self._data = self._home / "data"
        self._log = log
        self._server_folder = server_folder

    def start(
        self,
        *,
        interruption: Interruption,
        port: int | None = None,
        max_connections: int = 100,
        options: Mapping[str, str] | None = None,
    ) -> Cluster:
        """A cluster that is ready: the running one as it is, or one started as asked.

        Without a port a free one is taken. The port and options of a running one stay.
        """
        running = self._postmaster()
        if running is not None:
            return self._when_ready(running, interruption, was_adopted=True)
        server = self._server()
        self._prepare_home()
        self._clear_stale_locks(interruption)
        if not self._data.exists():
            self._make_data(server, interruption)
        settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_permissions": "0700",
            "max_connections": str(max_connections),
            "timezone": "UTC",
            "log_timezone": "UTC",
            **(options or {}),
        }
        sockets = self._socket_folder()
        command = [
            server.program("postgres"),
            "-D",
            str(self._data),
            "-k",
            str(sockets),
        ]
        command += ["-p", str(port or free_port())]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        identity = processes.start(
            "postgres",
            command,
            log=self._log,
            environment=_ENVIRONMENT,
            folder=self._home,
            account=self._account,
        )
        try:
            return self._when_ready(identity, interruption, was_adopted=False)
        except BaseException:
            self._end(identity)
            raise

    def running(self) -> Identity | None:
        """The server of this folder, None when it is stopped."""
        return self._postmaster()

    def stop(self) -> bool:
        """Stops the server and its sessions; what was committed stays. True if one was running."""
        identity = self._postmaster()
        if identity is None:
            return False
        self._end(identity)
        return True

    def remove(self) -> None:
        """Stops the server and removes the folder with all data."""
        self.stop()
        shutil.rmtree(self._home, ignore_errors=True)
        if self._place.is_symlink():
            self._place.unlink()

    def program(self, name: str) -> str:
        """The path of a client program that goes with the server."""
        return self._server().program(name)

    def _server(self) -> binaries.Server:
        try:
            major = int((self._data / "PG_VERSION").read_text())
        except FileNotFoundError:
            major = None
        server = binaries.find_server(self._server_folder, major)
        return binaries.readable_server(server, self._account)

    def _prepare_home(self) -> None:
        self._home.mkdir(parents=True, exist_ok=True)
        self._home.chmod(0o700)
        self._give(self._home)

    def _give(self, path: Path) -> None:
        if self._account is not None:
            os.chown(path, self._account.user_id, self._account.group_id)

    def _make_data(self, server: binaries.Server, interruption: Interruption) -> None:
        # Made beside its place and renamed, so that an interrupted initdb leaves nothing that
        # looks like a cluster.
        unfinished = self._home / "data.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        password = self._home / "password"
        password.touch(mode=0o600)
        password.write_text(secrets.token_urlsafe(24))
        self._give(password)
        command = [server.program("initdb"), "-D", str(unfinished), "-U", "postgres"]
        command += [
            "--auth-local=trust",
            "--auth-host=scram-sha-256",
            f"--pwfile={password}",
        ]
        command += ["--encoding=UTF8", "--no-locale", "--no-sync"]
        processes.run(
            "initdb",
            command,
            environment=_ENVIRONMENT,
            folder=self._home,
            interruption=interruption,
            account=self._account,
        )
        unfinished.rename(self._data)

    def _socket_folder(self) -> Path:
        folder = self._home / "sockets"
        if len(os.fsencode(folder / ".s.PGSQL.65535.lock")) > _SOCKET_PATH_BYTES:
            folder = Path(tempfile.mkdtemp(prefix="haulage-", dir="/tmp"))
        folder.mkdir(exist_ok=True)
        folder.chmod(0o700)
        self._give(folder)
        return folder

    def _when_ready(
        self, identity: Identity, interruption: Interruption, *, was_adopted: bool
    ) -> Cluster:
        processes.wait_until(
            lambda: self._pid_file()[7:8] == ["ready"],
            "PostgreSQL was not ready",
            watching=[identity],
            interruption=interruption,
            timeout_seconds=_START_SECONDS,
        )
        lines = self._pid_file()
        password = (self._home / "password").read_text()
        return Cluster(identity, int(lines[3]), lines[4], password, was_adopted)

    def _pid_file(self) -> list[str]:
        try:
            text = (self._data / "postmaster.pid").read_text()
        except OSError:
            return []
        return [line.strip() for line in text.splitlines()]

    def _postmaster(self) -> Identity | None:
        lines = self._pid_file()
        if not lines or not lines[0].isdigit():
            return None
        identity = processes.identify("postgres", int(lines[0]), self._log)
        if identity is None or str(self._data) not in identity.command:
            return None  # ended without a chance to remove the file; the pid may be anybody's
        return identity

    def _end(self, identity: Identity) -> None:
        sockets = self._sockets_in_use()
        # SIGINT rolls sessions back and writes a checkpoint; SIGTERM would wait for clients.
        processes.stop([identity], grace_seconds=_STOP_SECONDS, number=signal.SIGINT)
        if sockets and sockets.parent != self._home:
            shutil.rmtree(sockets, ignore_errors=True)

    def _clear_stale_locks(self, interruption: Interruption) -> None:
        """Removes what a killed server left, which PostgreSQL itself does only for a free pid."""
        if not self._pid_file():
            return
        # Backends of a killed postmaster end by themselves, but until then the data are theirs.
        processes.wait_until(
            lambda: not self._backends_left(),
            f"The processes of a killed PostgreSQL still use {self._data}",
            watching=[],
            interruption=interruption,
            timeout_seconds=_STOP_SECONDS,
        )
        sockets = self._sockets_in_use()
        for socket in sockets.glob(".s.PGSQL.*") if sockets else ():
            socket.unlink(missing_ok=True)
        (self._data / "postmaster.pid").unlink(missing_ok=True)

    def _sockets_in_use(self) -> Path | None:
        folder = "".join(self._pid_file()[4:5])
        return Path(folder) if folder else None

    def _backends_left(self) -> bool:
        for process in psutil.process_iter(["cwd"]):
            if process.info["cwd"] == str(self._data):
                return True
        return False
