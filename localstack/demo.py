"""Two jobs of the same inputs through the whole stack: the second one reuses every file."""

import json
import sys
import time
from collections import defaultdict
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from localstack import env_file, seed
from localstack.client import Client
from localstack.init import resources
from localstack.processes import ProcessError
from localstack.stack import Stack

DATES = 24
_POLL_SECONDS = 0.15
_SHOWN_LINES = 3
_FINAL = ("COMPLETED", "FAILED", "CANCELLED", "EXPIRED")


class Finished(NamedTuple):
    """A job that came to its end, and how long that took from the submission on."""

    job: dict[str, Any]
    seconds: float


def run(stack: Stack) -> None:
    """Submit both jobs and show what became of them; raises unless both completed."""
    values = env_file.read(stack.env_path)
    client = Client(values["HAULAGE_URL"], values["HAULAGE_API_KEY"])
    inputs = sample_inputs()
    print(f"\nSubmitting {len(inputs)} inputs: every symbol at {DATES} dates", flush=True)
    # On a stack that is up, some of the files may be there already.
    first = _follow(stack, client, client.submit(inputs, options={"reuse": {"enabled": False}}))
    print(json.dumps(shortened(first.job), indent=2))
    _expect(first, generated=len(inputs), reused=0)
    path = client.first_input(first.job["jobId"])["s3Path"]
    print(f"\n{path} begins:")
    for line in _read_file(path, values).splitlines()[:_SHOWN_LINES]:
        print(f"    {line}")
    print("\nSubmitting the same inputs again: every file is there already", flush=True)
    second = _follow(stack, client, client.submit(inputs))
    print()
    print(table([first, second]), flush=True)
    _expect(second, generated=0, reused=len(inputs))


def sample_inputs() -> list[dict[str, object]]:
    """Every symbol of the sample at its latest dates."""
    days = defaultdict(list)
    for price in seed.read_prices():
        days[price.symbol].append(price.day)
    return [
        {
            "indexKey": symbol,
            "effectiveDate": int(day.strftime("%Y%m%d")),
            "asofindicator": seed.ASOF_INDICATOR,
        }
        for symbol, known in days.items()
        for day in sorted(known)[-DATES:]
    ]


def shortened(job: dict[str, Any]) -> dict[str, Any]:
    """The job with the long list of its files, if it has one, cut to the first and the last."""
    files = job["dataContent"]
    if files and len(files) > _SHOWN_LINES:
        files = [files[0], f"... {len(files) - 2} more ...", files[-1]]
    return {**job, "dataContent": files}


def table(finished: list[Finished]) -> str:
    """One line for each job."""
    head = ("job", "status", "done", "generated", "reused", "seconds")
    lines: list[tuple[str, ...]] = [head]
    for job, seconds in finished:
        counts = (job["done"], job["filesGenerated"], job["filesReused"])
        lines.append((job["jobId"], job["status"], *map(str, counts), f"{seconds:.2f}"))
    counted = head[2:]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column in counted else cell.ljust(width)
            for column, cell, width in zip(head, line, widths, strict=True)
        )
        for line in lines
    )


def _follow(stack: Stack, client: Client, job_id: str) -> Finished:
    started = time.monotonic()
    shown = ""
    while True:
        job = client.job(job_id)
        seconds = time.monotonic() - started
        line = (
            f"{job_id}  {job['status']:<9}  done {job['done']}/{job['total']}"
            f"  running {job['running']}  pending {job['pending']}  failed {job['failed']}"
        )
        shown = _show(line, shown, is_last=job["status"] in _FINAL)
        if job["status"] in _FINAL:
            return Finished(job, seconds)
        if seconds > stack.settings.demo_timeout_seconds:
            raise ProcessError(f"{job_id} did not end within {seconds:.0f} s; see `make logs`.")
        stack.check()
        stack.interruption.pause(_POLL_SECONDS)


def _show(line: str, shown: str, *, is_last: bool) -> str:
    if sys.stdout.isatty():
        end = "\n" if is_last else ""
        print(f"\r\x1b[2K{line}", end=end, flush=True)
    elif line != shown:
        print(line, flush=True)
    return line


def _read_file(path: str, values: dict[str, str]) -> str:
    where = urlsplit(path)
    access = resources.Access(values["AWS_ENDPOINT_URL"], values["AWS_DEFAULT_REGION"])
    s3 = resources.client("s3", access)
    body = s3.get_object(Bucket=where.netloc, Key=where.path.lstrip("/"))["Body"].read()
    return str(body.decode())


def _expect(finished: Finished, *, generated: int, reused: int) -> None:
    job = finished.job
    found = (job["status"], job["filesGenerated"], job["filesReused"])
    if found != ("COMPLETED", generated, reused):
        reason = job.get("errorMessage") or "see `make logs`"
        raise ProcessError(
            f"{job['jobId']} is {found[0]} with {found[1]} files generated and {found[2]} reused, "
            f"not COMPLETED with {generated} and {reused}: {reason}"
        )
