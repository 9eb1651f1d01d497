"""Supervises LocalStack, run from its own environment without Docker, network or token."""

import json
import os
import shutil
import signal
import urllib.request
from pathlib import Path

from localstack import environment, processes
from localstack.interruption import Interruption
from localstack.processes import Identity, ProcessError

SERVICES = ("sqs", "s3", "cloudformation", "cloudwatch")

# The folder of objects, as the gateway names it.
OBJECTS = "s3"

_CHECKOUT = Path(__file__).resolve().parent.parent
_READY_SECONDS = 120.0
_INSTALL_SECONDS = 1800.0


def install(checkout: Path, interruption: Interruption) -> Path:
    """The folder of LocalStack's environment, made on the first call and when its lock changes."""
    folder = checkout / ".local" / "tools" / "localstack"
    lock = checkout / "localstack" / "requirements.lock"
    if not environment.is_complete(folder, lock):
        print("Installing LocalStack into .local/tools (once) ...", flush=True)
        processes.run(
            "The installation of LocalStack",
            [
                environment.localstack_python(checkout),
                str(checkout / "localstack" / "environment.py"),
                str(folder),
                str(lock),
            ],
            environment=os.environ,
            folder=checkout,
            interruption=interruption,
            timeout_seconds=_INSTALL_SECONDS,
        )
    return folder


def start(
    tools: Path,
    *,
    port: int,
    data: Path,
    log: Path,
    services: tuple[str, ...] = SERVICES,
    end_with_parent: bool = False,
) -> Identity:
    """Starts LocalStack on 127.0.0.1:port; `wait_ready` tells when it answers.

    Nothing it keeps outlives it: queues and objects are gone after a stop.
    """
    data.mkdir(parents=True, exist_ok=True)
    # It is killed, and leaves what it kept of objects that nobody can reach any more.
    shutil.rmtree(data / OBJECTS, ignore_errors=True)
    command = [
        str(environment.python_of(tools)),
        "-I",
        str(_CHECKOUT / "localstack/gateway.py"),
    ]
    return processes.start(
        "localstack",
        [*command, *(["--end-with-parent"] if end_with_parent else [])],
        log=log,
        environment=_environment(port, data, services),
        folder=data,
        port=port,
        end_with_parent=end_with_parent,
    )


def wait_ready(
    identity: Identity, interruption: Interruption, services: tuple[str, ...] = SERVICES
) -> str:
    """The endpoint URL, once every service runs in this very LocalStack."""
    url = f"http://127.0.0.1:{identity.port}"
    processes.wait_until(
        lambda: identity.listens and is_ready(url, services),
        f"LocalStack was not ready on {url}",
        watching=[identity],
        interruption=interruption,
        timeout_seconds=_READY_SECONDS,
    )
    return url


def is_ready(url: str, services: tuple[str, ...] = SERVICES) -> bool:
    """True when the health page says that the services run; an error when one never will.

    Whose page it is only `Identity.listens` can tell.
    """
    # No proxy: http_proxy may be set, and it cannot reach our loopback.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url}/_localstack/health", timeout=2) as answer:
            states = json.load(answer)["services"]
    except (OSError, ValueError, KeyError):
        return False
    broken = [name for name in services if states.get(name) in ("error", "disabled", None)]
    if broken:
        raise ProcessError(f"LocalStack could not load {', '.join(broken)}.")
    return all(states[name] == "running" for name in services)


def stop(identity: Identity) -> None:
    """Ends LocalStack and waits until it is gone.

    At once: an orderly stop takes it 5 s, and it has nothing to save.
    """
    processes.stop([identity], grace_seconds=5.0, number=signal.SIGKILL)


def _environment(port: int, data: Path, services: tuple[str, ...]) -> dict[str, str]:
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(data),
        # Otherwise it takes this machine for its container and writes to /etc and /var/lib.
        "OVERRIDE_IN_DOCKER": "0",
        "FILESYSTEM_ROOT": str(data / "fs"),
        "DNS_ADDRESS": "0",
        "GATEWAY_LISTEN": f"127.0.0.1:{port}",
        "LOCALSTACK_HOST": f"127.0.0.1:{port}",
        "SERVICES": ",".join(services),
        "STRICT_SERVICE_LOADING": "1",
        "EAGER_SERVICE_LOADING": "1",
        "DISABLE_EVENTS": "1",
        "SKIP_SSL_CERT_DOWNLOAD": "1",
        "LS_LOG": "warning",
        "SQS_ENDPOINT_STRATEGY": "path",  # the default queue URLs need a name server
        "SQS_DISABLE_CLOUDWATCH_METRICS": "1",
        "S3_SKIP_SIGNATURE_VALIDATION": "0",
    }
