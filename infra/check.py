"""`python -m infra.check [PROCESS ...]`: what processes would refuse, without a neighbour.

It checks for those that are named, or all three: `api`, `dispatcher`, `consumer`. It exits with 0,
or with 78 as they would, and says on standard error what is wrong and who would not start. With 2
it exits if there is no such process.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from infra.clients import check_environment
from infra.commands import exit_code_of
from infra.database_url import asyncpg_arguments
from infra.kinds import choose_kinds, load, load_kinds
from infra.process import EXIT_MISCONFIGURED
from infra.settings import Settings
from infra.telemetry.otel_settings import OtelSettings
from schema.errors import Misconfigured

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_EVERY = ("api", "dispatcher", "consumer")
_WORKING = ("dispatcher", "consumer")


def main(arguments: Sequence[str] | None = None) -> int:
    """Say what is wrong with our settings or, if nothing is, with all that stands on them."""
    parser = argparse.ArgumentParser("python -m infra.check", description=__doc__)
    parser.add_argument("process", nargs="*", metavar="PROCESS")
    processes = parser.parse_args(arguments).process or _EVERY
    if unknown := set(processes) - set(_EVERY):
        parser.error(f"{', '.join(sorted(unknown))}: there are {', '.join(_EVERY)}")
    wrong = complaints(os.environ, processes)
    sys.stderr.writelines(f"{line}\n" for line in wrong)
    return EXIT_MISCONFIGURED if wrong else 0


def complaints(environment: Mapping[str, str], processes: Sequence[str]) -> list[str]:
    """Give a line for each thing that these processes refuse, with the names of who does.

    It imports the kinds from outside with their processors, and makes none of them.
    """
    try:
        settings = Settings.from_environment(environment)
    except Misconfigured as error:
        return [str(error)]
    events, dead = settings.events_queue_url, settings.dead_letter_queue_url
    checks: list[tuple[tuple[str, ...], Callable[[], object]]] = [
        (_EVERY, lambda: asyncpg_arguments(settings.database_url)),
        (_EVERY, lambda: OtelSettings.from_environment(environment)),
        (_EVERY, lambda: load_kinds(settings.kinds, settings.kind_policies)),
        (_WORKING, lambda: _check_direct_url(settings)),
        (_WORKING, lambda: settings.work_queue_url),
        (("dispatcher",), lambda: _check_aws(settings, events, dead)),
        (("consumer",), lambda: _check_aws(settings, settings.bucket)),
        (("consumer",), lambda: _check_processors(settings)),
    ]
    found: dict[str, set[str]] = {}
    for whose, check in checks:
        if concerned := set(whose) & set(processes):
            try:
                check()
            except Misconfigured as error:
                found.setdefault(str(error), set()).update(concerned)
    return [_told(reason, whose) for reason, whose in found.items()]


def _told(reason: str, whose: set[str]) -> str:
    if len(whose) == len(_EVERY):
        return reason
    return f"{' and '.join(name for name in _EVERY if name in whose)}: {reason}"


def _check_direct_url(settings: Settings) -> None:
    if settings.database_direct_url:
        asyncpg_arguments(settings.database_direct_url, setting="HAULAGE_DATABASE_DIRECT_URL")


def _check_aws(settings: Settings, *needed: str | None) -> None:
    if any(needed) or (settings.consumer_mode == "sqs-consumer" and settings.queue_url):
        check_environment()


def _check_processors(settings: Settings) -> None:
    """Import what the chosen kinds name; ask a factory that can tell of settings beforehand."""
    try:
        kinds = load_kinds(settings.kinds, settings.kind_policies)
    except Misconfigured:
        return  # said already, of every process
    for kind in choose_kinds(kinds, settings.consumer_kinds).values():
        factory = load(kind.processor, setting=f"kind {kind.name!r}")
        check = getattr(factory, "check_settings", None)
        if check is not None:
            about = f"kind {kind.name!r}: {kind.processor}"
            try:
                check(settings)
            except Misconfigured as error:
                raise Misconfigured(f"{about}: {error}") from error
            except (Exception, SystemExit) as error:  # whatever a user's code raises
                told = f"{type(error).__name__}: {error}"
                raise Misconfigured(f"{about}: check_settings: {told}") from error


if __name__ == "__main__":
    sys.exit(exit_code_of(main))
