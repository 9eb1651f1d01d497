"""Runs a processor over inputs of a claim; whatever it raises or returns becomes an outcome.

Also ``sys.exit``, and what bindings of other languages raise beside ``Exception``: that would end
the process, and what it does for others.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog
from pydantic import TypeAdapter

from consumer.processors.protocol import Work
from consumer.processors.verdicts import is_expected, outcome_of
from schema.storable import BadOutcome, storable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic import BaseModel

    from consumer.processors.protocol import BatchProcessor, Processor
    from infra.queue.protocol import Claim, ClaimedInput
    from schema.kinds import Kind
    from schema.outcome import Outcome

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class OneByOne:
    """Runs a ``Processor``."""

    together = 1

    def __init__(self, kind: Kind, processor: Processor) -> None:
        self._reader = _Reader(kind)
        self._processor = processor

    async def run(self, claim: Claim, inputs: Sequence[ClaimedInput]) -> list[Outcome]:
        """Give an outcome for each input, in order; raises nothing but cancellation."""
        return [await self._run(claim, input_) for input_ in inputs]

    async def _run(self, claim: Claim, input_: ClaimedInput) -> Outcome:
        try:
            return storable(await self._processor.process(self._reader.work(claim, input_)))
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - becomes the outcome, and is logged if unexpected
            return _told(error, claim, [input_])


class Together:
    """Runs a ``BatchProcessor``, with up to a chunk of inputs at once."""

    def __init__(self, kind: Kind, processor: BatchProcessor) -> None:
        self.together = kind.chunk.maximum
        self._reader = _Reader(kind)
        self._processor = processor

    async def run(self, claim: Claim, inputs: Sequence[ClaimedInput]) -> list[Outcome]:
        """Give an outcome for each input, in order; raises nothing but cancellation.

        An input that no longer fits its model is refused by itself, not with its neighbours.
        """
        works = self._reader.works(claim, inputs)
        if works is not None:
            return await self._run(claim, inputs, works)
        outcomes: dict[int, Outcome] = {}
        works, readable = [], []
        for input_ in inputs:
            try:
                works.append(self._reader.work(claim, input_))
                readable.append(input_)
            except BaseException as error:  # noqa: BLE001 - becomes the outcome
                outcomes[input_.ordinal] = _told(error, claim, [input_])
        if works:
            given = await self._run(claim, readable, works)
            outcomes |= {work.ordinal: one for work, one in zip(works, given, strict=True)}
        return [outcomes[input_.ordinal] for input_ in inputs]

    async def _run(
        self, claim: Claim, inputs: Sequence[ClaimedInput], works: Sequence[Work]
    ) -> list[Outcome]:
        try:
            said = await self._processor.process_many(works)
            _check_number(said, works)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - becomes the outcome, and is logged if unexpected
            return [_told(error, claim, inputs)] * len(works)
        return [_storable(one, claim, input_) for one, input_ in zip(said, inputs, strict=True)]


class _Reader:
    """Reads what the database holds of inputs and options into the kind's models."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        # Validating a chunk in one call costs a third of validating its inputs one by one.
        self._many: TypeAdapter[list[BaseModel]] = TypeAdapter(list[kind.input_model])  # type: ignore[name-defined]
        self._options: tuple[str, BaseModel] | None = None

    def work(self, claim: Claim, input_: ClaimedInput) -> Work:
        """Read one input; raises what the models raise."""
        body = self._kind.input_model.model_validate_json(input_.body)
        return _work(claim, input_, body, self._options_of(claim))

    def works(self, claim: Claim, inputs: Sequence[ClaimedInput]) -> list[Work] | None:
        """Read all inputs at once, or give nothing when any of them does not fit."""
        try:
            options = self._options_of(claim)
            bodies = self._many.validate_json(f"[{','.join(input_.body for input_ in inputs)}]")
        except BaseException:  # noqa: BLE001 - read one by one, the one at fault says what it is
            return None
        return [
            _work(claim, input_, body, options) for input_, body in zip(inputs, bodies, strict=True)
        ]

    def _options_of(self, claim: Claim) -> BaseModel:
        """Read the options of the claim's job, once while claims of like jobs follow each other."""
        if self._options is None or self._options[0] != claim.options:
            options = self._kind.options_model.model_validate_json(claim.options)
            self._options = claim.options, options
        return self._options[1]


def _work(claim: Claim, input_: ClaimedInput, body: BaseModel, options: BaseModel) -> Work:
    return Work(
        body=body,
        options=options,
        job_id=claim.job_id,
        job_key=claim.job_key,
        owner_id=claim.owner_id,
        request_date=claim.request_date,
        ordinal=input_.ordinal,
        attempt=input_.attempts + 1,
        trace=claim.trace,
    )


def _storable(said: Outcome, claim: Claim, input_: ClaimedInput) -> Outcome:
    """Give what can be recorded of what was said of one input of many."""
    try:
        return storable(said)
    except BadOutcome as error:
        return _told(error, claim, [input_])


def _check_number(outcomes: Sequence[Outcome], works: Sequence[Work]) -> None:
    if len(outcomes) != len(works):
        reason = f"process_many gave {len(outcomes)} outcomes for {len(works)} inputs"
        raise BadOutcome(reason)


def _told(error: BaseException, claim: Claim, inputs: Sequence[ClaimedInput]) -> Outcome:
    if not is_expected(error):
        # Whether it is tried again is decided later: what gives up is told as an error there.
        log.warning(
            "processor.failed",
            kind=claim.kind,
            job=claim.job_key,
            first_ordinal=inputs[0].ordinal,
            inputs=len(inputs),
            error_class=type(error).__name__,
            exc_info=error,
        )
    return outcome_of(error)
