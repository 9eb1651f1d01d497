"""Several consumers and dispatchers share one job; every input takes effect exactly once.

By hand with more inputs, and more of each process::

    ACCEPTANCE_INPUTS=20000 python -m pytest -s tests/acceptance/test_scale.py
    ACCEPTANCE_INPUTS=50000 ACCEPTANCE_PROCESSES=4 \\
        python -m pytest -s tests/acceptance/test_scale.py
"""

import os
import time
from collections import Counter

import pytest

from tests.acceptance.ledger import inputs, with_some_files
from tests.acceptance.site import Site

pytestmark = pytest.mark.acceptance

INPUTS = int(os.environ.get("ACCEPTANCE_INPUTS", "2000"))
PROCESSES = int(os.environ.get("ACCEPTANCE_PROCESSES", "2"))


async def test_every_input_runs_once_whoever_of_many_processes_gets_it(site: Site) -> None:
    members = await site.start(consumers=PROCESSES, dispatchers=PROCESSES)
    began = time.monotonic()
    job_id = await site.submit(with_some_files(inputs(INPUTS)), chunk_size=50)
    await site.completed(job_id, timeout_seconds=120 + INPUTS / 50)
    seconds = time.monotonic() - began
    assert site.ledger.runs() == dict.fromkeys(range(INPUTS), 1)
    assert not await site.witness.charges(job_id)
    shares = Counter(mark.pid for mark in site.ledger.marks("ended"))
    assert set(shares) <= {member.pid for member in members[:PROCESSES]}
    site.fleet.none_failed()
    print(f"{site.mode}: {INPUTS} inputs in {seconds:.1f} s, by process {sorted(shares.values())}")
