"""The supervisor of LocalStack."""

import urllib.parse
from pathlib import Path
from uuid import uuid4

import psutil
import pytest

from localstack import aws as supervisor
from localstack.init.resources import Access, client
from localstack.interruption import Interruption
from localstack.processes import ProcessError
from tests.conftest import CHECKOUT


def test_it_answers_on_the_loopback_interface_only(aws: Access) -> None:
    port = urllib.parse.urlsplit(aws.endpoint_url).port
    listening = {
        connection.laddr.ip
        for connection in psutil.net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN
        and connection.laddr
        and connection.laddr.port == port
    }
    assert listening == {"127.0.0.1"}


def test_every_service_that_we_use_runs(aws: Access) -> None:
    assert supervisor.is_ready(aws.endpoint_url)


def test_objects_are_kept_in_the_folder_of_the_stack_alone(aws: Access) -> None:
    """One folder under /tmp for all belongs to whoever came first, and fills up for ever."""
    port = urllib.parse.urlsplit(aws.endpoint_url).port
    server = next(
        connection.pid
        for connection in psutil.net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN
        and connection.laddr
        and connection.laddr.port == port
    )
    folder = Path(psutil.Process(server).cwd()) / supervisor.OBJECTS
    bucket = f"kept-{uuid4().hex[:12]}"
    s3 = client("s3", aws)
    s3.create_bucket(Bucket=bucket)
    s3.put_object(Bucket=bucket, Key="one", Body=b"1")
    assert (folder / bucket).is_dir()


def test_one_that_cannot_listen_ends_and_is_not_taken_for_who_answers_there(
    aws: Access, tmp_path: Path
) -> None:
    """It said that it was ready and lived on, and its stack worked with the other one's queues."""
    second = supervisor.start(
        supervisor.install(CHECKOUT, Interruption()),
        port=urllib.parse.urlsplit(aws.endpoint_url).port or 0,
        data=tmp_path / "data",
        log=tmp_path / "log",
        end_with_parent=True,
    )
    assert supervisor.is_ready(aws.endpoint_url)
    assert not second.listens
    with pytest.raises(ProcessError, match=r"localstack died with exit code 1\.[^$]*in use"):
        supervisor.wait_ready(second, Interruption())


def test_a_client_reaches_it_whatever_proxy_and_profile_the_environment_names(
    aws: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert client("sqs", aws).list_queues()


def test_nothing_answers_on_a_port_without_it() -> None:
    assert not supervisor.is_ready("http://127.0.0.1:1")
