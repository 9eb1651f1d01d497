"""Several consumers and dispatchers share one export; every file is there once, and right.

By hand with more files; the rows are made up, the bucket and the queue are LocalStack's or the
suite's own::

    EXPORT_INPUTS=20000 python -m pytest -s tests/acceptance/test_export_scale.py
"""

import datetime as dt
import os
import time
from collections import Counter
from uuid import uuid4

import pytest

from tests.acceptance.exports import HEADER, Exports

pytestmark = pytest.mark.acceptance

INPUTS = int(os.environ.get("EXPORT_INPUTS", "300"))
FIRST_DAY = dt.date(2001, 1, 1)
LEVELS = """
    INSERT INTO index_level (index_key, effective_date, asof_indicator, line, level)
    SELECT 'IDX' || n % 100, date '2001-01-01' + (n / 100)::integer, 'CLS', line,
           CAST(n || '.' || line AS numeric)
    FROM generate_series(0, CAST(:inputs AS integer) - 1) AS n, generate_series(1, 2) AS line
"""


def wanted() -> list[dict[str, object]]:
    return [
        {
            "indexKey": f"IDX{n % 100}",
            "effectiveDate": int((FIRST_DAY + dt.timedelta(days=n // 100)).strftime("%Y%m%d")),
            "asofindicator": "CLS",
        }
        for n in range(INPUTS)
    ]


def rows_of(n: int) -> list[list[str]]:
    date = (FIRST_DAY + dt.timedelta(days=n // 100)).isoformat()
    key = f"IDX{n % 100}"
    return [HEADER, *([key, date, "CLS", str(line), f"{n}.{line}"] for line in (1, 2))]


async def test_many_processes_write_every_file_once_and_right(exports: Exports) -> None:
    site, bucket, client = exports.site, exports.bucket, exports.client
    await site.platform.rows(LEVELS, inputs=INPUTS)
    consumers = await site.start(consumers=2, dispatchers=1)
    inputs = wanted()
    began = time.monotonic()
    job_id = await exports.submit(inputs, f"scale.{uuid4().hex}")
    job = await exports.ended(job_id, timeout_seconds=120 + INPUTS / 20)
    seconds = time.monotonic() - began
    assert (job["status"], job["filesGenerated"], job["filesReused"]) == ("COMPLETED", INPUTS, 0)

    listed = []
    page = f"/jobs/{job_id}/inputs?pageSize=500"
    while page:
        answer = (await client.get(page)).json()
        listed += answer["items"]
        after = answer["next"]
        page = f"/jobs/{job_id}/inputs?pageSize=500&after={after}" if after else ""
    day = dt.datetime.fromisoformat(job["requestedAt"]).strftime("%Y/%m/%d")
    paths = [bucket.path(day, job_id, one) for one in inputs]
    assert [one["s3Path"] for one in listed] == paths
    assert Counter(f"s3://{bucket.name}/{key}" for key in bucket.versions()) == Counter(paths)
    for n, path in enumerate(paths):
        assert bucket.read(path)[0] == rows_of(n)

    await site.platform.check_consistency()
    await site.platform.check_all_done()
    shares = {one.pid: sum(d["accepted"] for d in one.lines("entry.done")) for one in consumers[:2]}
    assert sum(shares.values()) == INPUTS
    site.fleet.none_failed()
    print(f"{site.mode}: {INPUTS} files in {seconds:.1f} s, by process {sorted(shares.values())}")
