"""The three processes of Haulage as the local stack runs them."""

import os
import sys
import urllib.request
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from localstack import processes
from localstack.init.resources import BUCKET, Access, Resources
from localstack.interruption import Interruption
from localstack.processes import Identity, ProcessError
from localstack.settings import PREFIX, Mode

# What the stack gives to its processes itself, every setting of a neighbour among it, and what is
# for clients.
OWN = frozenset({
    "CONSUMER_MODE", "DATABASE_URL", "HAULAGE_DATABASE_DIRECT_URL", "HAULAGE_DATABASE_POOLER",
    "HAULAGE_EXPORT_DATABASE_URL", "HAULAGE_EXPORT_DATABASE_POOLER", "HAULAGE_QUEUE_URL",
    "HAULAGE_EVENTS_QUEUE_URL", "HAULAGE_DEAD_LETTER_QUEUE_URL", "HAULAGE_BUCKET",
    "HAULAGE_API_HOST", "HAULAGE_API_PORT", "HAULAGE_HEALTH_HOST", "HAULAGE_HEALTH_PORT",
    "HAULAGE_URL", "HAULAGE_API_KEY", "HAULAGE_ADMIN_KEY",
})  # fmt: skip
# What the clients of AWS and Postgres read out of the environment; those of AWS read files, too.
_OF_CLIENTS = ("AWS_", "PG")
_NO_FILES = {
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
}
READY_SECONDS = 60.0
# Longer than the processes give themselves to drain.
STOP_SECONDS = 50.0
STOPPING = (
    "Stopping: consumers finish their open long poll and the inputs they have begun,"
    f" {STOP_SECONDS:g} s at most ..."
)


@dataclass(frozen=True, slots=True)
class Child:
    """One process to start: its name, its module, its port and what only it is told."""

    name: str
    module: str
    port: int
    environment: Mapping[str, str]

    @property
    def ready_url(self) -> str:
        """Where it says whether it is ready."""
        return f"http://127.0.0.1:{self.port}/readyz"


def connections(
    mode: Mode, database_url: str, access: Access, resources: Resources
) -> dict[str, str]:
    """What every process needs to reach the world, by the names that it goes by."""
    values = {
        "DATABASE_URL": database_url,
        "AWS_ENDPOINT_URL": access.endpoint_url,
        "AWS_DEFAULT_REGION": access.region,
        "AWS_ACCESS_KEY_ID": access.access_key_id,
        "AWS_SECRET_ACCESS_KEY": access.secret_access_key,
        "HAULAGE_BUCKET": BUCKET,
        "CONSUMER_MODE": mode,
    }
    if resources.queue_url and resources.events_queue_url:
        values["HAULAGE_QUEUE_URL"] = resources.queue_url
        values["HAULAGE_EVENTS_QUEUE_URL"] = resources.events_queue_url
    return values


def leave_others(environment: MutableMapping[str, str]) -> dict[str, str]:
    """Take out what could lead a process to another database, queue, bucket or account.

    Gives what was taken out of Haulage's own settings.
    """
    taken = {name: environment.pop(name) for name in OWN & environment.keys()}
    for name in [name for name in environment if name.startswith(_OF_CLIENTS)]:
        del environment[name]
    environment.update(_NO_FILES)
    return taken


def inherited() -> dict[str, str]:
    """Our environment for a process of the stack: it leads to no other's neighbours."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    leave_others(kept)
    # A proxy cannot reach our loopback interface.
    kept["NO_PROXY"] = kept["no_proxy"] = "127.0.0.1,localhost"
    kept.setdefault("HAULAGE_LOG_FORMAT", "console")
    # A consumer that is told to stop finishes its open long poll first.
    kept.setdefault("HAULAGE_RECEIVE_WAIT_SECONDS", "3")
    return kept


def check_settings(mode: Mode, checkout: Path, interruption: Interruption) -> None:
    """Raises ProcessError if the processes would refuse their settings, or could not load a kind.

    To be called before anything starts: a kind is loaded in a process of its own, as they do it.
    What the stack will give them stands in for itself; the check asks no neighbour.
    """
    access = Access("http://127.0.0.1")
    queue_url = f"{access.endpoint_url}/000000000000/any"
    queues = Resources(queue_url, f"{queue_url}-events")
    given = connections(
        mode,
        "postgresql://127.0.0.1/haulage",
        access,
        queues if mode == "sqs-consumer" else Resources(None, None),
    )
    processes.run(
        "The check of the settings",
        [sys.executable, "-m", "infra.check"],
        environment=inherited() | given,
        folder=checkout,
        interruption=interruption,
    )


def start(child: Child, environment: Mapping[str, str], checkout: Path) -> Identity:
    """Starts it; its log is named after it."""
    return processes.start(
        child.name,
        [sys.executable, "-m", child.module],
        log=checkout / ".local" / "logs" / f"{child.name}.log",
        environment={**environment, **child.environment},
        folder=checkout,
        port=child.port,
    )


def wait_ready(
    child: Child, identity: Identity, others: Sequence[Identity], interruption: Interruption
) -> None:
    """Returns once it says itself that it is ready; raises if it takes too long, or one dies."""
    processes.wait_until(
        lambda: identity.listens and answers(child.ready_url),
        f"{child.name} was not ready",
        watching=[identity, *others],
        interruption=interruption,
        timeout_seconds=READY_SECONDS,
    )


def answers(url: str) -> bool:
    """True when the URL answers with 200."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=2) as answer:
            return bool(answer.status == HTTPStatus.OK)
    except OSError:
        return False


def key(
    role: str,
    known: str | None,
    environment: Mapping[str, str],
    checkout: Path,
    interruption: Interruption,
) -> str:
    """The known key if the database still knows it, else a new one."""

    def run(*arguments: str, given: str = "") -> str:
        return processes.run(
            "api.keys",
            [sys.executable, "-m", "api.keys", *arguments],
            environment=environment,
            folder=checkout,
            interruption=interruption,
            given=given,
        ).strip()

    if known:
        try:
            run("check", given=known)
        except ProcessError:
            pass  # the data were removed since
        else:
            return known
    return run("create", "--owner", "local", "--role", role, "--label", "local stack")
