"""Neighbours that can be broken: an SQS in memory, and proxies before it and before Postgres."""

from collections.abc import AsyncIterator

import pytest
from sqlalchemy import make_url

from infra.database import Database
from localstack.postgres import Cluster
from tests.deliveries import Delivery
from tests.integration.faults.stations import sqs_station
from tests.platform import settings_for
from tests.stubs.sqs import SqsStub
from tests.stubs.tcp_proxy import TcpProxy


@pytest.fixture
async def stub() -> AsyncIterator[SqsStub]:
    async with SqsStub() as stub:
        yield stub


@pytest.fixture
async def station(stub: SqsStub, database: Database, database_url: str) -> AsyncIterator[Delivery]:
    """Delivery over the stub, with nothing in between."""
    async with sqs_station(stub, database, database_url) as delivery:
        yield delivery


@pytest.fixture
async def sqs_proxy(stub: SqsStub) -> AsyncIterator[TcpProxy]:
    port = make_url(stub.endpoint_url).port
    assert port is not None
    async with TcpProxy("127.0.0.1", port) as proxy:
        yield proxy


@pytest.fixture
async def postgres_proxy(postgres: Cluster) -> AsyncIterator[TcpProxy]:
    async with TcpProxy("127.0.0.1", postgres.port, postgres=True) as proxy:
        yield proxy


@pytest.fixture
def proxied_url(database_url: str, postgres_proxy: TcpProxy) -> str:
    """The test's database, through the proxy."""
    url = make_url(database_url).set(port=postgres_proxy.port)
    return url.render_as_string(hide_password=False)


@pytest.fixture
async def proxied(proxied_url: str) -> AsyncIterator[Database]:
    """A pool of connections through the proxy."""
    settings = settings_for(
        proxied_url, statement_timeout_seconds=1, database_connect_timeout_seconds=2
    )
    async with Database.from_settings(settings, name="proxied") as database:
        yield database
