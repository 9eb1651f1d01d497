"""The options of a stack: those that it runs with, and in what others differ from them."""

import os
import urllib.parse
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from localstack import children
from localstack.processes import Identity
from localstack.settings import PREFIX, LocalSettings
from schema.redaction import HIDDEN, is_secret, redact

_UNSET = "unset"


class Difference(NamedTuple):
    """An option of which a stack has another value than is wanted, fit to be shown."""

    name: str
    has: str
    wanted: str


def running(recorded: Iterable[Identity], known: Mapping[str, str]) -> dict[str, str]:
    """The options that the recorded processes run with; ``known`` is what their clients are told.

    What they were handed on is read from one that lives: none lives, none is there.
    """
    by_name = {one.name: one for one in recorded}
    options = {
        "mode": known.get("CONSUMER_MODE", ""),
        "port": _port(known.get("HAULAGE_URL", "")),
        "postgres_port": _port(known.get("DATABASE_URL", "")),
        "aws_port": _port(known.get("AWS_ENDPOINT_URL", "")),
        "consumers": str(sum(name.startswith("consumer-") for name in by_name)),
        "dispatchers": str(sum(name.startswith("dispatcher-") for name in by_name)),
    }
    if "postgres" in by_name:
        options["postgres_bin"] = str(Path(by_name["postgres"].command[0]).parent)
    return options | _handed_on_to(by_name.values())


def expressly(local: Mapping[str, str]) -> dict[str, str]:
    """What is asked for now: the options of make, and what our environment hands on."""
    return {**local, **_handed_on(os.environ)}


def altogether(settings: LocalSettings, has: Mapping[str, str]) -> dict[str, str]:
    """What a stack started now would have, said of all that another one has."""
    local = {
        "mode": settings.mode,
        "consumers": str(settings.consumers),
        "dispatchers": str(settings.dispatchers),
    }
    unset = {name: _UNSET for name in has if name.isupper()}
    return {**local, **unset, **_handed_on(children.inherited())}


def differences(has: Mapping[str, str], wanted: Mapping[str, str]) -> list[Difference]:
    """In what the wanted options are otherwise than those that a stack has; more may be."""
    found = []
    for name, value in wanted.items():
        now = has.get(name, _UNSET if name.isupper() else value)
        if now != value:
            found.append(Difference(name.upper(), _shown(name, now), _shown(name, value)))
    return found


def _shown(name: str, value: str) -> str:
    """What may be shown of an option: nothing of headers, for a key among them has any name."""
    is_headers = name.startswith("OTEL_") and name.endswith("_HEADERS")
    if value not in {"", _UNSET} and (is_headers or is_secret(name)):
        return HIDDEN
    return redact(value)


def _handed_on(environment: Mapping[str, str]) -> dict[str, str]:
    """What an environment hands on to the processes as it is: settings, and where kinds lie."""
    return {
        name: value
        for name, value in environment.items()
        if (name == "PYTHONPATH" or name.startswith(("HAULAGE_", "OTEL_")))
        and not name.startswith(PREFIX)
        and name not in children.OWN
    }


def _handed_on_to(recorded: Iterable[Identity]) -> dict[str, str]:
    for one in recorded:
        # It may end this moment; then another one tells.
        with suppress(psutil.Error):
            if one.is_alive and one.name not in ("postgres", "localstack"):
                return _handed_on(psutil.Process(one.pid).environ())
    return {}


def _port(url: str) -> str:
    return str(urllib.parse.urlsplit(url).port or "")
