"""The runner of isolated kinds, without any process."""

import errno
from typing import Any, cast

from consumer.processors.children import Children
from consumer.processors.isolated import Isolated
from schema.kinds import JobInput, Kind
from schema.outcome import Failed
from tests.claims import claim_of


class NoProcesses:
    """A host on which nothing more can be started."""

    async def lend(self, kind: Kind) -> Any:
        raise OSError(errno.EAGAIN, f"no process for {kind.name}")


async def test_a_process_that_cannot_be_started_is_an_attempt_that_failed() -> None:
    kind = Kind("isolated", JobInput, "nobody:ASKS", isolation="process")
    runner = Isolated(kind, cast(Children, NoProcesses()))
    claim = claim_of("isolated", 1, 2)
    outcomes = await runner.run(claim, claim.inputs)
    assert [type(outcome) for outcome in outcomes] == [Failed, Failed]
    assert "no process for isolated" in str(outcomes[0])
