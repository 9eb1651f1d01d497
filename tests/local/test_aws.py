"""The supervisor of LocalStack."""

import urllib.parse

import psutil

from localstack import aws as supervisor
from localstack.init.resources import Access


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


def test_nothing_answers_on_a_port_without_it() -> None:
    assert not supervisor.is_ready("http://127.0.0.1:1")
