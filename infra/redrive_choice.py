"""What a redrive may choose, and how the choice is written down in its record."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from schema.lifecycle import InputStatus
from schema.statements.dead_letters import LetterFilter

if TYPE_CHECKING:
    from collections.abc import Mapping

LARGEST_CHOICE = 10_000
REDRIVABLE = (
    InputStatus.DLQ,
    InputStatus.NOT_FOUND,
    InputStatus.CANCELLED,
    InputStatus.EXPIRED,
)


@dataclass(frozen=True, slots=True)
class InputChoice:
    """Inputs of one job: all of these statuses, or those of them that ``ordinals`` names."""

    job_id: UUID
    statuses: tuple[str, ...] = REDRIVABLE
    ordinals: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        assert set(self.statuses) <= set(REDRIVABLE), "only these may be redriven"
        assert len(self.ordinals or ()) <= LARGEST_CHOICE, "the caller refuses more"


Choice = InputChoice | LetterFilter


def written(choice: Choice) -> str:
    """Write a choice down as the JSON that the record keeps."""
    if isinstance(choice, InputChoice):
        ordinals = None if choice.ordinals is None else list(choice.ordinals)
        document: dict[str, Any] = {
            "job": str(choice.job_id), "statuses": list(choice.statuses), "ordinals": ordinals,
        }  # fmt: skip
    else:
        document = {
            "owner": choice.owner_id and str(choice.owner_id),
            "kind": choice.kind,
            "job": choice.job_id and str(choice.job_id),
            "fingerprint": choice.fingerprint,
            "diedFrom": choice.died_from and choice.died_from.isoformat(),
            "diedTo": choice.died_to and choice.died_to.isoformat(),
            "errorClass": choice.error_class,
        }
    return json.dumps({name: value for name, value in document.items() if value is not None})


def read(source: str, document: Mapping[str, Any]) -> Choice:
    """Read a choice that was written down."""
    if source == "job":
        ordinals = document.get("ordinals")
        return InputChoice(
            UUID(document["job"]),
            tuple(document["statuses"]),
            None if ordinals is None else tuple(ordinals),
        )
    return LetterFilter(
        owner_id=_maybe(UUID, document.get("owner")),
        kind=document.get("kind"),
        job_id=_maybe(UUID, document.get("job")),
        fingerprint=document.get("fingerprint"),
        died_from=_maybe(dt.datetime.fromisoformat, document.get("diedFrom")),
        died_to=_maybe(dt.datetime.fromisoformat, document.get("diedTo")),
        error_class=document.get("errorClass"),
    )


def _maybe(read: Any, text: str | None) -> Any:  # noqa: ANN401 - whatever ``read`` gives
    return None if text is None else read(text)
