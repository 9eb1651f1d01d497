"""Settings of the one-machine stack: `HAULAGE_LOCAL_…` in the environment, or make's variables."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self, cast

PREFIX = "HAULAGE_LOCAL_"
_OF_MAKE = frozenset({"mode", "consumers", "dispatchers", "port"})
MODES = ("sqs-consumer", "outbox")
Mode = Literal["sqs-consumer", "outbox"]


class SettingsError(Exception):
    """A setting is unknown or out of its range; the message names it."""


@dataclass(frozen=True, slots=True)
class LocalSettings:
    """What to run and where; a port of None means the usual one or the next free one."""

    mode: Mode = "sqs-consumer"
    consumers: int = 1
    dispatchers: int = 1
    port: int | None = None
    postgres_port: int | None = None
    aws_port: int | None = None
    postgres_bin: Path | None = None
    demo_timeout_seconds: int = 120

    @classmethod
    def read(cls, environment: Mapping[str, str], given: Mapping[str, str | None]) -> Self:
        """The given settings before those of the environment; raises on what is not understood."""
        values = asked(environment, given)
        unknown = values.keys() - cls.__dataclass_fields__.keys()
        if unknown:
            known = ", ".join(PREFIX + name.upper() for name in cls.__dataclass_fields__)
            raise SettingsError(
                f"Unknown setting {PREFIX}{min(unknown).upper()}; known are {known}."
            )
        mode = values.get("mode", "sqs-consumer")
        if mode not in MODES:
            raise SettingsError(f"MODE is {mode!r}, must be one of {', '.join(MODES)}.")
        folder = values.get("postgres_bin")
        return cls(
            mode=cast("Mode", mode),
            consumers=_number(values, "consumers", 1, 0, 64) or 0,
            dispatchers=_number(values, "dispatchers", 1, 0, 16) or 0,
            port=_number(values, "port", None, 1, 65535),
            postgres_port=_number(values, "postgres_port", None, 1, 65535),
            aws_port=_number(values, "aws_port", None, 1, 65535),
            postgres_bin=Path(folder).expanduser() if folder else None,
            demo_timeout_seconds=_number(values, "demo_timeout_seconds", 120, 1, 86_400) or 120,
        )


def asked(environment: Mapping[str, str], given: Mapping[str, str | None]) -> dict[str, str]:
    """What was asked for expressly, by name, as it was written."""
    values = {
        name.removeprefix(PREFIX).lower(): value
        for name, value in environment.items()
        if name.startswith(PREFIX) and value
    }
    return values | {name: value for name, value in given.items() if value}


def _number(
    values: Mapping[str, str], name: str, default: int | None, least: int, most: int
) -> int | None:
    text = values.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
        shown = name.upper() if name in _OF_MAKE else PREFIX + name.upper()
        raise SettingsError(f"{shown} is {text!r}, must be a number from {least} to {most}.")
    return int(text)
