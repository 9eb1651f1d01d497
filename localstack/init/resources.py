"""Creates the queues and the bucket in LocalStack; running it again changes nothing.

The stack without containers calls `create`; LocalStack's container runs the file (`ready.d`), with
nothing but its own packages, so botocore is all that is used here.
"""

import json
import os
from functools import cache
from typing import Any, NamedTuple

import botocore.session
from botocore.config import Config

BUCKET = "haulage"
WORK_QUEUE, DEAD_LETTER_QUEUE, EVENTS_QUEUE = "haulage-work", "haulage-work-dlq", "haulage-events"
VISIBILITY_SECONDS = 30
RETENTION_SECONDS = 14 * 24 * 3600
# A crash net only: giving up is counted in the database, and receives are not attempts.
MAX_RECEIVES = 1000


class Access(NamedTuple):
    """What a client has to be given; the credentials are LocalStack's well-known ones."""

    endpoint_url: str
    region: str = "us-east-1"
    access_key_id: str = "test"
    secret_access_key: str = "test"  # noqa: S105


class Resources(NamedTuple):
    """The URLs of the queues, None without SQS."""

    queue_url: str | None
    events_queue_url: str | None


@cache
def _descriptions() -> object:
    """What reads the descriptions of services and keeps them: megabytes of JSON, once."""
    return botocore.session.Session().get_component("data_loader")


def client(service: str, where: Access) -> Any:  # noqa: ANN401 made by botocore at run time
    """A botocore client for one service."""
    session = botocore.session.Session()
    session.register_component("data_loader", _descriptions())
    return session.create_client(
        service,
        endpoint_url=where.endpoint_url,
        region_name=where.region,
        aws_access_key_id=where.access_key_id,
        aws_secret_access_key=where.secret_access_key,
        # A proxy of the environment cannot reach our loopback interface.
        config=Config(proxies={}),
    )


def create(where: Access, *, with_queues: bool = True) -> Resources:
    """Create what is missing and return where it is."""
    client("s3", where).create_bucket(Bucket=BUCKET)
    if not with_queues:
        return Resources(None, None)
    sqs = client("sqs", where)
    lasting = {"MessageRetentionPeriod": str(RETENTION_SECONDS)}
    dead = sqs.create_queue(QueueName=DEAD_LETTER_QUEUE, Attributes=lasting)["QueueUrl"]
    wanted = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])
    redrive = {
        "deadLetterTargetArn": wanted["Attributes"]["QueueArn"],
        "maxReceiveCount": MAX_RECEIVES,
    }
    work = {
        **lasting,
        "VisibilityTimeout": str(VISIBILITY_SECONDS),
        "RedrivePolicy": json.dumps(redrive),
    }
    return Resources(
        sqs.create_queue(QueueName=WORK_QUEUE, Attributes=work)["QueueUrl"],
        sqs.create_queue(QueueName=EVENTS_QUEUE, Attributes=lasting)["QueueUrl"],
    )


if __name__ == "__main__":
    create(Access(os.environ.get("AWS_ENDPOINT_URL", "http://localhost:4566")))
