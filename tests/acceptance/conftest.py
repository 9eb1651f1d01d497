"""Sites in both modes; what runs there ends with the test, however the test ends."""

import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from infra.database import Database
from localstack import processes
from localstack.init import resources
from localstack.init.resources import Access
from localstack.interruption import Interruption
from localstack.ports import LOOPBACK, free_port
from localstack.processes import Identity
from tests.acceptance.exports import exports
from tests.acceptance.fleet import CHECKOUT, Fleet
from tests.acceptance.ledger import Ledger
from tests.acceptance.site import Site, SqsQueueInside
from tests.acceptance.witness import Witness
from tests.deliveries import CA_BUNDLE
from tests.platform import Platform
from tests.stubs.bucket import bucket_stub

__all__ = ["exports"]

# Whatever can wait waits briefly; leases are long, so that only those end that a test ends.
BRIEF = {
    "HAULAGE_LOG_FORMAT": "json",
    "HAULAGE_KINDS": "tests.acceptance.ledger:LEDGER",
    "HAULAGE_DATABASE_POOL_SIZE": "4",
    "HAULAGE_POLL_FLOOR_SECONDS": "0.3",
    "HAULAGE_RECEIVE_WAIT_SECONDS": "1",
    "HAULAGE_RECEIVERS": "1",
    "HAULAGE_MAINTENANCE_INTERVAL_SECONDS": "0.2",
    "HAULAGE_RELAY_LOCK_SECONDS": "5",
    "HAULAGE_RELAY_BACKOFF_CAP_SECONDS": "0.5",
    "HAULAGE_LEASE_SECONDS": "30",
    "HAULAGE_BUCKET": "unused",
    "HAULAGE_PROMETHEUS": "false",
}


def start_stub(port: int, folder: Path, *queues: str) -> Identity:
    """Start the SQS stub, with these queues in it, and wait until it listens."""
    log = folder / f"sqs-{uuid4().hex[:6]}.log"
    command = [sys.executable, "-m", "tests.stubs.sqs", "--port", str(port)]
    for name in queues:
        command += ["--queue", name]
    identity = processes.start("sqs", command, log=log, environment={}, folder=CHECKOUT)
    processes.wait_until(
        lambda: LOOPBACK in log.read_text(),
        "the SQS stub did not listen",
        watching=[identity],
        interruption=Interruption(),
        timeout_seconds=60,
    )
    return identity


def credentials(access: Access) -> dict[str, str]:
    """Give what processes are told of an AWS beside its endpoints."""
    return {
        "AWS_DEFAULT_REGION": access.region,
        "AWS_ACCESS_KEY_ID": access.access_key_id,
        "AWS_SECRET_ACCESS_KEY": access.secret_access_key,
        "AWS_CA_BUNDLE": CA_BUNDLE,
    }


@pytest.fixture(scope="session")
def sqs_stub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Access]:
    port = free_port()
    identity = start_stub(port, tmp_path_factory.mktemp("sqs"))
    yield Access(f"http://{LOOPBACK}:{port}")
    processes.stop([identity], grace_seconds=5)


@pytest.fixture(scope="session")
def bucket() -> Iterator[Access]:
    with bucket_stub() as url:
        yield Access(url)


@pytest.fixture
async def witness(database: Database) -> Witness:
    witness = Witness(database)
    await witness.call_in()
    return witness


@pytest.fixture(params=["outbox", "sqs"])
async def site(
    request: pytest.FixtureRequest,
    database_url: str,
    platform: Platform,
    witness: Witness,
    bucket: Access,
    tmp_path: Path,
) -> AsyncIterator[Site]:
    """A site in each mode: SQS is the suite's stub, with a queue of the test's own."""
    ledger = tmp_path / "ledger"
    environment = BRIEF | credentials(bucket)
    environment |= {"DATABASE_URL": database_url, "LEDGER_FILE": str(ledger)}
    environment["AWS_ENDPOINT_URL_S3"] = bucket.endpoint_url
    queue = None
    if request.param == "outbox":
        environment["CONSUMER_MODE"] = "outbox"
    else:
        access: Access = request.getfixturevalue("sqs_stub")
        made = resources.client("sqs", access).create_queue(QueueName=f"test-{uuid4().hex}")
        queue = SqsQueueInside.at(access, made["QueueUrl"])
        environment["AWS_ENDPOINT_URL_SQS"] = access.endpoint_url
        environment |= {"CONSUMER_MODE": "sqs-consumer", "HAULAGE_QUEUE_URL": queue.url}
    fleet = Fleet(tmp_path, environment)
    yield Site(request.param, platform, witness, fleet, Ledger(ledger), queue)
    fleet.end()
