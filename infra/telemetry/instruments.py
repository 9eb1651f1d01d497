"""What a part of a process is handed to tell what it does; by itself it tells nobody."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from infra.telemetry.tracing import OFF, Tracing


@dataclass(frozen=True, slots=True)
class Instruments:
    """The spans that a process makes."""

    tracing: Tracing = OFF


SILENT: Final = Instruments()
