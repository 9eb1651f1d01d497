"""Reads what botocore knows of SQS and S3, for the processes that are forked from one with this."""

import botocore.session

from infra.clients import descriptions

_session = botocore.session.Session()
_session.register_component("data_loader", descriptions())
for _service in ("sqs", "s3"):
    # Nothing is asked; what a client is made from is kept for those of every fork.
    _session.create_client(_service, region_name="us-east-1")
