"""``python -m dispatcher.doctor``: prove the invariants on a live database, in one snapshot.

It only reads, and running work causes no false alarm. Exit code 0: healthy; 1: problems found;
2: it cannot tell, because there is no such job or the settings are wrong; 3: the database is away.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy.exc import DBAPIError

from infra.commands import exit_code_of
from infra.database import Database, first_line
from infra.migrate import check_at_head
from infra.settings import Settings
from schema.errors import HaulageError, Misconfigured
from schema.statements.doctor import CHECKS, Check
from schema.statements.read import locate_job

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

HEALTHY, PROBLEMS, CANNOT_TELL, AWAY = 0, 1, 2, 3
_SHOWN = 20
_STATEMENT_TIMEOUT_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Finding:
    """A check that found breaches: up to so many of them, each (job, what is wrong with it)."""

    check: Check
    breaches: tuple[tuple[str, str], ...]


async def examine(
    database: Database,
    *,
    patience_seconds: float,
    key: str | None = None,
    checks: Iterable[Check] = CHECKS,
    most: int = _SHOWN,
) -> list[Finding]:
    """Run checks within one snapshot, over all jobs or over one."""
    findings = []
    async with database.snapshot(
        statement_timeout_seconds=_STATEMENT_TIMEOUT_SECONDS
    ) as connection:
        for check in checks:
            statement = check.statement(key=key, patience_seconds=patience_seconds, most=most)
            rows = (await connection.execute(statement)).all()
            if rows:
                breaches = tuple((row.job or "(no job)", row.detail) for row in rows)
                findings.append(Finding(check, breaches))
    return findings


async def diagnose(settings: Settings, *, key: str | None, say: Callable[[str], object]) -> int:
    """Examine the database and say what is wrong; give the exit code."""
    # What the services repair by themselves gets the time of a few rounds.
    patience_seconds = settings.resend_after_seconds + 10 * settings.maintenance_interval_seconds
    async with Database.from_settings(settings, name="haulage doctor") as database:
        await check_at_head(database)
        if key is not None and not await database.fetch(locate_job(key, owner_id=None)):
            say(f"doctor: there is no job {key}\n")
            return CANNOT_TELL
        findings = await examine(database, patience_seconds=patience_seconds, key=key)
    for finding in findings:
        say(f"{finding.check.name}: {finding.check.wrong}\n")
        for job, detail in finding.breaches:
            say(f"  {job}  {detail}\n")
        if len(finding.breaches) == _SHOWN:
            say(f"  … {_SHOWN} are shown, there may be more\n")
        say(f"  what to do: {finding.check.remedy}\n")
    scope = f"job {key}" if key else "all jobs"
    say(f"doctor: {len(CHECKS) - len(findings)} of {len(CHECKS)} checks passed over {scope}\n")
    return PROBLEMS if findings else HEALTHY


def main(arguments: list[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="dispatcher.doctor", description=__doc__)
    parser.add_argument("--job", metavar="KEY", help="look at one job only")
    options = parser.parse_args(arguments)
    try:
        settings = Settings.from_environment(os.environ)
        return asyncio.run(diagnose(settings, key=options.job, say=sys.stdout.write))
    except HaulageError as error:
        sys.stderr.write(f"doctor: cannot tell: {error}\n")
        return CANNOT_TELL if isinstance(error, Misconfigured) else AWAY
    except DBAPIError as error:
        sys.stderr.write(f"doctor: cannot tell: {first_line(error)}\n")
    return CANNOT_TELL


if __name__ == "__main__":
    sys.exit(exit_code_of(main))
