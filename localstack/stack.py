"""The whole stack on one machine: PostgreSQL, LocalStack, API, dispatchers and consumers."""

import asyncio
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from localstack import aws, children, database, env_file, options, processes
from localstack.children import Child
from localstack.failures import told_at_once
from localstack.init import resources as init
from localstack.init.resources import Access, Resources
from localstack.interruption import Interruption
from localstack.options import Difference
from localstack.ports import LOOPBACK, Ports
from localstack.postgres import Cluster, Postgres
from localstack.processes import Identity, ProcessError
from localstack.seed import seed
from localstack.settings import LocalSettings
from localstack.state import State
from localstack.together import both

API_PORT, POSTGRES_PORT, AWS_PORT = 8080, 5433, 4566
DISPATCHER_PORT, CONSUMER_PORT = 8180, 8190
_OUTBOX_SERVICES = tuple(service for service in aws.SERVICES if service != "sqs")
# Room for the pools of a few processes of each kind, twice over.
_MAX_CONNECTIONS = 300


class Stack:
    """The stack of one checkout, whoever started it; all it keeps lies under `.local`."""

    def __init__(self, checkout: Path, settings: LocalSettings, interruption: Interruption) -> None:
        self.checkout = checkout
        self.settings = settings
        self.interruption = interruption
        self.folder = checkout / ".local"
        self.state = State(self.folder)
        self.env_path = self.folder / "env"

    def postgres(self) -> Postgres:
        """The supervisor of the stack's cluster."""
        return Postgres(
            self.folder / "postgres",
            log=self.folder / "logs" / "postgres.log",
            server_folder=self.settings.postgres_bin,
        )

    def is_up(self) -> bool:
        """True when every process that was started for the stack still runs, and can be reached."""
        recorded = self.state.processes()
        is_whole = any(one.name == "api" for one in recorded)
        return is_whole and not self.dead() and not self.deaf()

    def differences(self, asked: Mapping[str, str]) -> list[Difference]:
        """What of the options that were asked for is otherwise in the stack that runs."""
        wanted = options.expressly(asked)
        if "postgres_bin" in wanted:
            wanted["postgres_bin"] = str(Path(self.postgres().program("postgres")).parent)
        return options.differences(self._options(), wanted)

    def dead(self) -> list[Identity]:
        """The processes of the stack that ended without being asked to."""
        return [one for one in self.state.processes() if processes.is_gone(one)]

    def deaf(self) -> list[Identity]:
        """The living processes that do not listen where they should: others may answer there."""
        return [one for one in self.state.processes() if one.is_alive and not one.listens]

    def up(self, *, attached: bool) -> bool:
        """Returns when all answer, False when they did before; on failure nothing is left running.

        Attached means that this process watches over the stack and ends it.
        """
        with self.state.alone(self.interruption):
            if self.is_up():
                return False
            self._tell_of_the_dead()
            self._end_processes()
            # What died of itself is no part of what comes up; PostgreSQL is known by its pid file.
            self.state.clear()
            self._set_logs_aside()
            if attached:
                self.state.supervise()
            try:
                with told_at_once(), Ports() as ports:
                    self._bring_up(ports)
            except BaseException:
                self._end_all()
                raise
            return True

    def down(self) -> bool:
        """Ends what runs and keeps the data; False when nothing ran."""
        supervisor = self.state.supervisor()
        if self.state.processes():
            print(children.STOPPING, flush=True)
        if supervisor is not None:
            # It ends the stack itself; what it leaves behind, if it hangs, is ended below.
            processes.stop([supervisor], grace_seconds=2 * children.STOP_SECONDS)
        with self.state.alone(self.interruption):
            return self._end_all() or supervisor is not None

    @contextmanager
    def ended_afterwards(self) -> Iterator[None]:
        """The stack is down after the block, however the block ends; why is said before."""
        try:
            with told_at_once():
                yield
        except BaseException:
            print(f"\n{children.STOPPING}", flush=True)
            raise
        finally:
            with self.state.alone(Interruption()):
                self._end_all()

    def reset(self) -> None:
        """Ends what runs and removes the data; installed tools stay."""
        self.down()
        with self.state.alone(self.interruption):
            self.postgres().remove()
            for name in ("env", "logs", "aws"):
                path = self.folder / name
                path.unlink() if path.is_file() else shutil.rmtree(path, ignore_errors=True)

    @contextmanager
    def database_url(self) -> Iterator[str]:
        """The database, its server started for the time being if it does not run."""
        if any(one.name == "postgres" for one in self.dead()):
            raise ProcessError(
                "PostgreSQL died under the stack, whose other processes wait for it: `make up`"
                " starts all of it, `make down` ends it."
            )
        if self.is_up():
            yield env_file.read(self.env_path)["DATABASE_URL"]
            return
        with self.state.alone(self.interruption), Ports() as ports:
            cluster = self._start_postgres(ports, self.interruption)
            try:
                yield asyncio.run(database.create(cluster))
            finally:
                if not cluster.was_adopted:
                    self.postgres().stop()

    def watch(self) -> None:
        """Returns never: raises when a process ends, or when we are asked to stop."""
        while True:
            self.check()
            self.interruption.pause(0.3)

    def check(self) -> None:
        """Raises when a process of the stack ended, and says how, with its last words."""
        dead = self.dead()
        if dead:
            raise ProcessError("\n".join(map(processes.obituary, dead)))

    def _options(self) -> dict[str, str]:
        return options.running(self.state.processes(), env_file.read(self.env_path))

    def _tell_of_the_dead(self) -> None:
        """Says why a stack is replaced, and what of it will be otherwise than before."""
        dead = [one.name for one in self.dead()]
        deaf = [f"{one.name} does not listen on its port, {one.port}" for one in self.deaf()]
        if len(dead) == len(self.state.processes()) or not dead + deaf:
            return
        which = "all" if "postgres" in dead else "all but PostgreSQL"
        why = "; ".join([f"{', '.join(dead)} died"] * bool(dead) + deaf)
        print(f"{why}: the rest is ended, and {which} started anew.")
        has = self._options()
        for one in options.differences(has, options.altogether(self.settings, has)):
            print(f"  {one.name} was {one.has}, is now {one.wanted}")

    def _bring_up(self, ports: Ports) -> None:
        tools = aws.install(self.checkout, self.interruption)
        api_port = ports.choose("the API", self.settings.port, API_PORT)
        aws_port = ports.choose("LocalStack", self.settings.aws_port, AWS_PORT)
        print("Starting PostgreSQL and LocalStack ...", flush=True)
        database_url, resources = both(
            lambda interruption: self._prepare_database(ports, interruption),
            lambda interruption: self._prepare_aws(tools, aws_port, interruption),
            self.interruption,
        )
        values = children.connections(
            self.settings.mode, database_url, Access(f"http://127.0.0.1:{aws_port}"), resources
        )
        environment = {**children.inherited(), **values}
        owner_key, admin_key = self._keys(environment)
        credentials = {
            "HAULAGE_URL": f"http://127.0.0.1:{api_port}",
            "HAULAGE_API_KEY": owner_key,
            "HAULAGE_ADMIN_KEY": admin_key,
        }
        env_file.write(self.env_path, {**credentials, **values})
        print("Starting the API, dispatchers and consumers ...", flush=True)
        planned = self._children(api_port, ports)
        started = []
        for child in planned:
            started.append(children.start(child, environment, self.checkout))
            self.state.record(started[-1])
        for child, identity in zip(planned, started, strict=True):
            children.wait_ready(child, identity, started, self.interruption)

    def _prepare_database(self, ports: Ports, interruption: Interruption) -> str:
        cluster = self._start_postgres(ports, interruption)
        self.state.record(cluster.identity)
        url = asyncio.run(database.create(cluster))
        processes.run(
            "The migration of the database",
            [sys.executable, "-m", "infra.migrate"],
            environment={**children.inherited(), "DATABASE_URL": url},
            folder=self.checkout,
            interruption=interruption,
        )
        asyncio.run(seed(url))
        asyncio.run(database.forget_what_aws_lost(url))
        return url

    def _start_postgres(self, ports: Ports, interruption: Interruption) -> Cluster:
        server, given = self.postgres(), self.settings.postgres_port
        port = None
        if server.running() is None:
            port = ports.choose("PostgreSQL", given, POSTGRES_PORT)
        return server.start(interruption=interruption, port=port, max_connections=_MAX_CONNECTIONS)

    def _prepare_aws(self, tools: Path, port: int, interruption: Interruption) -> Resources:
        services = aws.SERVICES if self.settings.mode == "sqs-consumer" else _OUTBOX_SERVICES
        identity = aws.start(
            tools,
            port=port,
            data=self.folder / "aws",
            log=self.folder / "logs" / "localstack.log",
            services=services,
        )
        self.state.record(identity)
        url = aws.wait_ready(identity, interruption, services)
        return init.create(Access(url), with_queues="sqs" in services)

    def _keys(self, environment: Mapping[str, str]) -> tuple[str, str]:
        known = env_file.read(self.env_path)

        def key(role: str, known_key: str | None) -> Callable[[Interruption], str]:
            return lambda interruption: children.key(
                role, known_key, environment, self.checkout, interruption
            )

        return both(
            key("owner", known.get("HAULAGE_API_KEY")),
            key("admin", known.get("HAULAGE_ADMIN_KEY")),
            self.interruption,
        )

    def _children(self, api_port: int, ports: Ports) -> list[Child]:
        api = {"HAULAGE_API_HOST": LOOPBACK, "HAULAGE_API_PORT": str(api_port)}
        planned = [Child("api", "api", api_port, api)]
        for module, count, first_port in (
            ("dispatcher", self.settings.dispatchers, DISPATCHER_PORT),
            ("consumer", self.settings.consumers, CONSUMER_PORT),
        ):
            for number in range(1, count + 1):
                name = f"{module}-{number}"
                port = ports.choose(name, None, first_port + number)
                health = {"HAULAGE_HEALTH_HOST": LOOPBACK, "HAULAGE_HEALTH_PORT": str(port)}
                planned.append(Child(name, module, port, health))
        return planned

    def _set_logs_aside(self) -> None:
        is_adopted = self.postgres().running() is not None
        for log in (self.folder / "logs").glob("*.log"):
            # A server that is adopted goes on writing to its own.
            if log.stem != "postgres" or not is_adopted:
                log.replace(log.with_suffix(".previous"))

    def _end_processes(self) -> bool:
        """Ends all but PostgreSQL, which whoever comes next adopts. True if something ran."""
        alive = [one for one in self.state.processes() if not processes.is_gone(one)]
        ours = [one for one in alive if one.name not in ("postgres", "localstack")]
        processes.stop(ours, grace_seconds=children.STOP_SECONDS)
        for one in alive:
            if one.name == "localstack":
                aws.stop(one)
        return bool(alive)

    def _end_all(self) -> bool:
        ended = self._end_processes()
        stopped = self.postgres().stop()
        self.state.clear()
        return ended or stopped
