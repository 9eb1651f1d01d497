"""Queues and bucket as LocalStack really makes them."""

import json

from localstack.init import resources
from localstack.init.resources import Access


def test_the_queues_are_as_declared_however_often_they_are_created(aws: Access) -> None:
    first = resources.create(aws)
    assert resources.create(aws) == first
    sqs = resources.client("sqs", aws)
    answer = sqs.get_queue_attributes(QueueUrl=first.queue_url, AttributeNames=["All"])
    attributes = answer["Attributes"]
    redrive = json.loads(attributes["RedrivePolicy"])
    assert redrive["deadLetterTargetArn"].endswith(f":{resources.DEAD_LETTER_QUEUE}")
    assert int(redrive["maxReceiveCount"]) == 1000
    assert attributes["VisibilityTimeout"] == "30"
    assert attributes["MessageRetentionPeriod"] == str(14 * 24 * 3600)


def test_a_queue_url_can_be_used_as_it_is(aws: Access) -> None:
    """Without a name server: the host of the URL is the endpoint's."""
    url = resources.create(aws).events_queue_url
    assert url is not None
    assert url.startswith(aws.endpoint_url)
    sqs = resources.client("sqs", aws)
    sqs.send_message(QueueUrl=url, MessageBody="event")
    received = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=5)["Messages"]
    assert [message["Body"] for message in received] == ["event"]
    sqs.delete_message(QueueUrl=url, ReceiptHandle=received[0]["ReceiptHandle"])


def test_without_queues_there_is_still_the_bucket(aws: Access) -> None:
    assert resources.create(aws, with_queues=False) == (None, None)
    s3 = resources.client("s3", aws)
    s3.put_object(Bucket=resources.BUCKET, Key="probe", Body=b"1")
    assert s3.get_object(Bucket=resources.BUCKET, Key="probe")["Body"].read() == b"1"
    s3.delete_object(Bucket=resources.BUCKET, Key="probe")
