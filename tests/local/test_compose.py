"""The container files say the same as the stack without containers."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from localstack.children import STOP_SECONDS
from localstack.init import resources

FOLDER = Path(__file__).resolve().parent.parent.parent / "localstack"
OURS = ("migrate", "seed", "api", "dispatcher", "consumer")


@pytest.fixture(scope="module")
def services() -> dict[str, dict[str, Any]]:
    content = yaml.safe_load((FOLDER / "compose.yaml").read_text())
    services = content["services"]
    assert isinstance(services, dict)
    return services


def test_every_port_is_published_on_the_loopback_interface_only(
    services: dict[str, dict[str, Any]],
) -> None:
    published = [port for service in services.values() for port in service.get("ports", [])]
    assert len(published) == 3
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_who_stops_has_the_time_that_a_drain_takes(services: dict[str, dict[str, Any]]) -> None:
    """As docs/running.md says it; killed sooner, a consumer leaves its work to the lease."""
    running = (FOLDER.parent / "docs" / "running.md").read_text()
    (told,) = re.findall(r"Give it (\d+) s before SIGKILL", running)
    assert {services[name]["stop_grace_period"] for name in OURS} == {f"{told}s"}
    assert float(told) == STOP_SECONDS


def test_no_command_goes_through_a_shell(services: dict[str, dict[str, Any]]) -> None:
    for service in services.values():
        assert isinstance(service.get("command", []), list)
        assert service.get("healthcheck", {"test": ["CMD"]})["test"][0] == "CMD"
    dockerfile = (FOLDER / "Dockerfile").read_text()
    for instruction in re.findall(r"^(?:RUN|CMD|ENTRYPOINT) (.*)$", dockerfile, re.MULTILINE):
        assert isinstance(json.loads(instruction), list)


def test_the_image_does_not_run_as_root() -> None:
    users = re.findall(r"^USER (.*)$", (FOLDER / "Dockerfile").read_text(), re.MULTILINE)
    assert users
    assert users[-1] not in ("root", "0")


def test_whom_the_image_runs_as_can_read_what_was_copied() -> None:
    """The checkout of somebody with a closed umask: COPY keeps its modes."""
    lines = (FOLDER / "Dockerfile").read_text().splitlines()
    opened = lines.index('RUN ["chmod", "--recursive", "a+rX", "."]')
    copied = [number for number, line in enumerate(lines) if line.startswith("COPY ")]
    (user,) = [number for number, line in enumerate(lines) if line.startswith("USER ")]
    assert max(copied) < opened < user


def test_what_the_image_copies_is_not_ignored() -> None:
    allowed = set(
        re.findall(r"^!(.*)$", (FOLDER / "Dockerfile.dockerignore").read_text(), re.MULTILINE)
    )
    copied = set(re.findall(r"^COPY (\S+) ", (FOLDER / "Dockerfile").read_text(), re.MULTILINE))
    assert copied == allowed


def test_the_processes_are_told_the_names_that_the_init_hook_creates(
    services: dict[str, dict[str, Any]],
) -> None:
    for name in OURS:
        environment = services[name]["environment"]
        assert environment["HAULAGE_BUCKET"] == resources.BUCKET
        assert environment["HAULAGE_QUEUE_URL"].endswith(f"/{resources.WORK_QUEUE}")
        assert environment["HAULAGE_EVENTS_QUEUE_URL"].endswith(f"/{resources.EVENTS_QUEUE}")
        assert environment["AWS_ENDPOINT_URL"] == "http://localstack:4566"


def test_what_a_service_waits_for_can_come_about(services: dict[str, dict[str, Any]]) -> None:
    for service in services.values():
        for name, wanted in service.get("depends_on", {}).items():
            if wanted["condition"] == "service_healthy":
                assert "healthcheck" in services[name]
            else:
                assert services[name]["restart"] == "no"


def test_the_init_hook_finds_its_script_where_the_folder_is_mounted(
    services: dict[str, dict[str, Any]],
) -> None:
    (mount,) = services["localstack"]["volumes"]
    source, target, _ = mount.split(":")
    hook = (FOLDER / "init" / "ready.d" / "resources.py").read_text()
    (named,) = re.findall(r'run_path\("([^"]+)"', hook)
    assert (FOLDER / source / Path(named).relative_to(target)).is_file()
