"""What an outage costs each process in log lines and CPU, behind proxies before its neighbours.

``OUTAGE_SECONDS=60`` makes it a minute, by hand; with ``-s`` the figures of each process are shown.
"""

import os
import sys
from collections import Counter

import psutil
import pytest
from sqlalchemy import make_url

from localstack.ports import LOOPBACK
from tests.acceptance.ledger import inputs
from tests.acceptance.site import Site
from tests.platform import eventually, stretch
from tests.stubs.tcp_proxy import TcpProxy

pytestmark = pytest.mark.acceptance

SECONDS = float(os.environ.get("OUTAGE_SECONDS", "3"))
INPUTS = 300


@pytest.mark.parametrize("site", ["sqs"], indirect=True)
@pytest.mark.parametrize("how", ["refuses", "swallows everything"])
@pytest.mark.parametrize("neighbour", ["postgres", "sqs"])
async def test_an_outage_costs_a_process_a_few_lines_and_next_to_no_work(
    site: Site, neighbour: str, how: str
) -> None:
    names = {"postgres": "DATABASE_URL", "sqs": "AWS_ENDPOINT_URL_SQS"}
    url = make_url(site.fleet.environment[names[neighbour]])
    assert url.port is not None
    async with TcpProxy(LOOPBACK, url.port) as proxy:
        proxied = url.set(port=proxy.port).render_as_string(hide_password=False)
        settings = {
            names[neighbour]: proxied.rstrip("/"),
            "HAULAGE_LEASE_SECONDS": 3,
            "HAULAGE_RESEND_AFTER_SECONDS": 4,
            "HAULAGE_STATEMENT_TIMEOUT_SECONDS": 2,
            "HAULAGE_DATABASE_CONNECT_TIMEOUT_SECONDS": 2,
            "HAULAGE_AWS_READ_TIMEOUT_SECONDS": 3,
        }
        members = [site.fleet.start(module, **settings) for module in ("dispatcher", "consumer")]
        await site.fleet.ready(*members)
        job_id = await site.submit(inputs(INPUTS, work_ms=50), chunk_size=5, max_attempts=100)
        await eventually(lambda: _some_are_done(site), timeout_seconds=60)
        watched = [psutil.Process(member.pid) for member in members]
        before = [(_cpu_seconds(p), len(m.lines())) for p, m in zip(watched, members, strict=True)]
        if how == "refuses":
            await proxy.outage()
        else:
            proxy.hold()
        await stretch(SECONDS)
        after = [(_cpu_seconds(p), len(m.lines())) for p, m in zip(watched, members, strict=True)]
        proxy.release()
        await proxy.listen()
        await site.completed(job_id)
    for member, (cpu, lines), (cpu_then, lines_then) in zip(members, before, after, strict=True):
        told = Counter(line["event"] for line in member.lines()[lines:lines_then])
        told.pop("entry.done", None)
        sys.stdout.write(
            f"\n{neighbour} {how}, {SECONDS:g} s: {member.identity.name} wrote {told.total()} lines"
            f" {dict(told)} and used {cpu_then - cpu:.2f} s of CPU\n"
        )
        assert told.total() <= 30 + SECONDS / 2
    site.fleet.none_failed()


async def _some_are_done(site: Site) -> bool:
    return bool(await site.platform.rows("SELECT 1 FROM job WHERE succeeded >= 20"))


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
