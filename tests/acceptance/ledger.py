"""A kind whose work leaves a mark outside: ``HAULAGE_KINDS=tests.acceptance.ledger:LEDGER``.

Each run of an input appends a line to the file that ``LEDGER_FILE`` names, in one write, when it
begins and when it ends: no transaction of ours can take back what was done. With ``gated`` an
input waits in between until the file beside it, ``….gate``, is there.
"""

import json
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from pydantic import Field

from consumer.processors.protocol import Resources, Work
from schema.chunking import ChunkBounds
from schema.errors import Fault, InvalidInput
from schema.kinds import JobInput, Kind
from schema.outcome import Artifact, Backoff, Outcome, Succeeded
from tests.platform import eventually, stretch

_GATED_SECONDS = 3_600


class LedgerInput(JobInput):
    number: int
    work_ms: float = Field(default=0, ge=0)
    gated: bool = False
    # Settling a file takes a transaction of several statements; otherwise it is one statement.
    file: bool = False
    # So many first attempts fail.
    failures: int = Field(default=0, ge=0)


@dataclass(frozen=True, slots=True)
class Mark:
    """One line: an input began or ended to run, in a run of its own, in a process."""

    what: str
    job: str
    ordinal: int
    run: str
    pid: int


class Ledger:
    """The file of marks, written by any number of processes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._gate = path.with_suffix(".gate")

    def add(self, what: str, work: Work, run: str) -> None:
        line = json.dumps([what, str(work.job_id), work.ordinal, run, os.getpid()])
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(file, f"{line}\n".encode())
        finally:
            os.close(file)

    def marks(self, what: str) -> list[Mark]:
        text = self._path.read_text() if self._path.exists() else ""
        marks = (Mark(*json.loads(line)) for line in text[: text.rfind("\n") + 1].splitlines())
        return [mark for mark in marks if mark.what == what]

    def runs(self) -> Counter[int]:
        """Count how often each ordinal ran to its end."""
        return Counter(mark.ordinal for mark in self.marks("ended"))

    def open_gate(self) -> None:
        self._gate.touch()

    async def pass_gate(self) -> None:
        await eventually(self._gate.exists, timeout_seconds=_GATED_SECONDS)


class LedgerProcessor:
    def __init__(self, resources: Resources) -> None:
        self._ledger = Ledger(Path(os.environ["LEDGER_FILE"]))

    async def process(self, work: Work) -> Outcome:
        return await keep(self._ledger, work)


async def keep(ledger: Ledger, work: Work) -> Outcome:
    """Do the work of one input."""
    body = work.body
    if not isinstance(body, LedgerInput):
        raise InvalidInput("not an input of kind ledger")
    run = uuid4().hex
    ledger.add("began", work, run)
    if body.gated:
        await ledger.pass_gate()
    await stretch(body.work_ms / 1_000)
    if work.attempt <= body.failures:
        raise Fault(f"attempt {work.attempt} fails, as it is to")
    ledger.add("ended", work, run)
    result = {"run": run}
    if not body.file:
        return Succeeded(result)
    artifact = Artifact(f"{work.job_id}/{work.ordinal}", f"ledger:{run}", 1, run)
    return Succeeded(result, artifact=artifact, reused=False)


LEDGER = Kind(
    "ledger",
    LedgerInput,
    "tests.acceptance.ledger:LedgerProcessor",
    backoff=Backoff(base_seconds=0.01, cap_seconds=0.05),
    max_attempts=100,
)
# Each input by itself, as work that is slow or ordered is cut.
LEDGER_APART = replace(LEDGER, name="ledger-apart", chunk=ChunkBounds(minimum=1, maximum=1))


def inputs(many: int, **fields: Any) -> list[dict[str, Any]]:
    return [{"number": number, **fields} for number in range(many)]


def with_some_files(bodies: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Let every third input come to a file, so that both ways of settling are used."""
    return [body | {"file": body["number"] % 3 == 0} for body in bodies]
