"""How fast files are exported to S3 on LocalStack, which is what bounds it."""

from __future__ import annotations

import asyncio
import json
import os
import time
from functools import partial
from typing import TYPE_CHECKING

from aiobotocore.config import AioConfig
from aiobotocore.session import get_session

from localstack.init.resources import BUCKET, create
from localstack.seed import ASOF_INDICATOR, read_prices, seed
from tests.benchmarks.contest import Rival, Sample, compete
from tests.benchmarks.jobs import drain, job
from tests.benchmarks.meter import CLIENT_CPU, cpu_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from types_aiobotocore_s3 import S3Client

    from localstack.init.resources import Access
    from tests.benchmarks.contest import Table
    from tests.benchmarks.stage import Place, Stage

EMULATOR_CPU = "LocalStack CPU s / 1,000"
_AT_ONCE = 16
_BASELINE = "bare client, put_object alone"


async def contest(stage: Stage, *, rounds: int, files: int) -> Table:
    """Export files in both modes, beside what LocalStack takes from a bare client."""
    access, emulator = stage.aws()
    create(access, with_queues=False)
    inputs = [
        {
            "indexKey": price.symbol,
            "effectiveDate": int(price.day.strftime("%Y%m%d")),
            "asofindicator": ASOF_INDICATOR,
        }
        for price in read_prices()[:files]
    ]
    bodies = json.dumps(inputs)

    async def export(place: Place) -> Sample:
        before = cpu_seconds(emulator)
        sample = await drain(place, [job(place, "export", len(inputs), bodies, chunk_size=20)])
        spent = (cpu_seconds(emulator) - before) / len(inputs) * 1000
        return Sample(sample.figure, {**sample.costs, EMULATOR_CPU: spent})

    rivals: list[Rival] = []
    places: list[Place] = []
    for label, mode in (("outbox", "outbox"), ("SQS", "sqs-consumer")):
        place = await stage.place(f"export_{label.lower()}", mode=mode, prefetch_inputs=100)
        place.environment["AWS_ENDPOINT_URL_S3"] = access.endpoint_url
        await seed(place.url)
        places.append(place)
        for module in ("dispatcher", "consumer"):
            stage.run(place, module)
        rivals.append(Rival(f"Haulage, {label}, 1 consumer", partial(export, place)))
    rivals.append(Rival(_BASELINE, partial(_put, access, emulator, len(inputs))))
    try:
        return await compete(
            "Export, one small file an input",
            "files/s",
            rivals,
            rounds=rounds,
            baseline=_BASELINE,
            notes=[
                (
                    f"{len(inputs)} files of one line a round, none reused. LocalStack takes "
                    "the files, and bounds this: read the ratio, not the figure."
                ),
                (
                    f"The bare client puts objects of the same size, {_AT_ONCE} at once, and "
                    "verifies nothing."
                ),
            ],
        )
    finally:
        for place in places:
            stage.stop(place)


async def _put(access: Access, emulator: int, files: int) -> Sample:
    config = AioConfig(
        max_pool_connections=_AT_ONCE, parameter_validation=False, s3={"addressing_style": "path"}
    )
    async with get_session().create_client(
        "s3",
        endpoint_url=access.endpoint_url,
        region_name=access.region,
        aws_access_key_id=access.access_key_id,
        aws_secret_access_key=access.secret_access_key,
        config=config,
    ) as client:
        numbers = iter(range(files))
        before, emulator_before = cpu_seconds(os.getpid()), cpu_seconds(emulator)
        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(_AT_ONCE):
                group.create_task(_put_from(client, numbers))
        elapsed = time.perf_counter() - began
        costs = {
            CLIENT_CPU: (cpu_seconds(os.getpid()) - before) / files * 1000,
            EMULATOR_CPU: (cpu_seconds(emulator) - emulator_before) / files * 1000,
        }
    return Sample(files / elapsed, costs)


async def _put_from(client: S3Client, numbers: Iterator[int]) -> None:
    for number in numbers:
        await client.put_object(
            Bucket=BUCKET,
            Key=f"bench/{number}.csv",
            Body=b"symbol,date,level\r\nMSFT,20240202,1\r\n",
        )
