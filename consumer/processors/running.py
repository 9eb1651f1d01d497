"""Runs a processor over inputs of a claim; whatever it raises or returns becomes an outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import structlog

from consumer.processors.protocol import Work
from consumer.processors.verdicts import is_expected, outcome_of
from schema.outcome import Failed, Missing, Outcome, Refused, Skipped, Succeeded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from consumer.processors.protocol import BatchProcessor, Processor
    from infra.queue.protocol import Claim, ClaimedInput
    from schema.kinds import Kind

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

# What a processor may return; that a worker vanished is for the reaper to say.
_OUTCOMES = (Succeeded, Skipped, Missing, Refused, Failed)


class OneByOne:
    """Runs a ``Processor``."""

    together = 1

    def __init__(self, kind: Kind, processor: Processor) -> None:
        self._kind = kind
        self._processor = processor

    async def run(self, claim: Claim, inputs: Sequence[ClaimedInput]) -> list[Outcome]:
        """Give an outcome for each input, in order; raises nothing but cancellation."""
        return [await self._run(claim, input_) for input_ in inputs]

    async def _run(self, claim: Claim, input_: ClaimedInput) -> Outcome:
        try:
            return _checked(await self._processor.process(_work(self._kind, claim, input_)))
        except Exception as error:  # noqa: BLE001 - becomes the outcome, and is logged if unexpected
            return _told(error, claim, [input_])


class Together:
    """Runs a ``BatchProcessor``, with up to a chunk of inputs at once."""

    def __init__(self, kind: Kind, processor: BatchProcessor) -> None:
        self.together = kind.chunk.maximum
        self._kind = kind
        self._processor = processor

    async def run(self, claim: Claim, inputs: Sequence[ClaimedInput]) -> list[Outcome]:
        """Give an outcome for each input, in order; raises nothing but cancellation.

        An input that no longer fits its model is refused by itself, not with its neighbours.
        """
        outcomes: dict[int, Outcome] = {}
        works: list[Work] = []
        for input_ in inputs:
            try:
                works.append(_work(self._kind, claim, input_))
            except Exception as error:  # noqa: BLE001 - becomes the outcome
                outcomes[input_.ordinal] = _told(error, claim, [input_])
        if works:
            given = await self._run(claim, inputs, works)
            outcomes |= {work.ordinal: one for work, one in zip(works, given, strict=True)}
        return [outcomes[input_.ordinal] for input_ in inputs]

    async def _run(
        self, claim: Claim, inputs: Sequence[ClaimedInput], works: Sequence[Work]
    ) -> list[Outcome]:
        try:
            outcomes = [_checked(one) for one in await self._processor.process_many(works)]
            _check_number(outcomes, works)
        except Exception as error:  # noqa: BLE001 - becomes the outcome, and is logged if unexpected
            return [_told(error, claim, inputs)] * len(works)
        return outcomes


def _work(kind: Kind, claim: Claim, input_: ClaimedInput) -> Work:
    return Work(
        body=kind.input_model.model_validate_json(input_.body),
        options=kind.options_model.model_validate_json(claim.options),
        job_id=claim.job_id,
        job_key=claim.job_key,
        owner_id=claim.owner_id,
        request_date=claim.request_date,
        ordinal=input_.ordinal,
        attempt=input_.attempts + 1,
        trace=claim.trace,
    )


def _checked(outcome: Any) -> Outcome:  # noqa: ANN401 - a plug-in may return anything
    if isinstance(outcome, _OUTCOMES):
        return outcome
    reason = f"the processor returned {type(outcome).__name__}, which is no outcome"
    raise TypeError(reason)


def _check_number(outcomes: Sequence[Outcome], works: Sequence[Work]) -> None:
    if len(outcomes) != len(works):
        reason = f"process_many gave {len(outcomes)} outcomes for {len(works)} inputs"
        raise TypeError(reason)


def _told(error: Exception, claim: Claim, inputs: Sequence[ClaimedInput]) -> Outcome:
    if not is_expected(error):
        log.error(
            "processor.failed",
            kind=claim.kind,
            job=claim.job_key,
            first_ordinal=inputs[0].ordinal,
            inputs=len(inputs),
            error_class=type(error).__name__,
            exc_info=error,
        )
    return outcome_of(error)
