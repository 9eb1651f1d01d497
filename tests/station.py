"""A client and a queue of its own, whichever SQS stands behind it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from aiobotocore.config import AioConfig
from aiobotocore.session import get_session

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    import pytest
    from botocore.exceptions import ClientError
    from types_aiobotocore_sqs import SQSClient


class Station:
    """A client and a queue of its own."""

    def __init__(self, client: SQSClient, url: str) -> None:
        self.client = client
        self.url = url

    async def send(self, body: str, **more: object) -> Mapping[str, Any]:
        call: Any = self.client.send_message
        answer: Mapping[str, Any] = await call(QueueUrl=self.url, MessageBody=body, **more)
        return answer

    async def send_many(self, *bodies: str) -> Mapping[str, Any]:
        entries: list[Any] = [
            {"Id": str(index), "MessageBody": body} for index, body in enumerate(bodies)
        ]
        return await self.client.send_message_batch(QueueUrl=self.url, Entries=entries)

    async def receive(self, most: int = 10, wait: int = 0, **more: object) -> list[Any]:
        call: Any = self.client.receive_message
        answer = await call(
            QueueUrl=self.url, MaxNumberOfMessages=most, WaitTimeSeconds=wait, **more
        )
        return list(answer.get("Messages", ()))

    async def delete(self, handle: str) -> None:
        await self.client.delete_message(QueueUrl=self.url, ReceiptHandle=handle)

    async def hide(self, handle: str, seconds: int) -> None:
        await self.client.change_message_visibility(
            QueueUrl=self.url, ReceiptHandle=handle, VisibilityTimeout=seconds
        )

    async def counts(self) -> tuple[int, int]:
        names: Any = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        answer = await self.client.get_queue_attributes(QueueUrl=self.url, AttributeNames=names)
        ready, hidden = (int(answer["Attributes"][name]) for name in names)
        return ready, hidden


@asynccontextmanager
async def opened(endpoint_url: str, *, read_timeout: float = 30) -> AsyncIterator[Station]:
    session = get_session()
    config = AioConfig(
        retries={"total_max_attempts": 1, "mode": "standard"},
        read_timeout=read_timeout,
        parameter_validation=False,
    )
    async with session.create_client(
        "sqs",
        endpoint_url=endpoint_url,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
        config=config,
    ) as client:
        answer = await client.create_queue(QueueName=f"check-{uuid4().hex}")
        yield Station(client, answer["QueueUrl"])


def code_of(error: pytest.ExceptionInfo[ClientError]) -> str:
    return error.value.response["Error"]["Code"]
