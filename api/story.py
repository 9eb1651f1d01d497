"""``python -m api.story``: tell what happened to a job, an input or a correlation id, and when.

It only reads the database. Exit code 0: told; 1: there is no such thing; 2: it cannot tell; 3: the
database is away.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import DBAPIError

from api.chronicle import START, Chronicle
from api.paths import JOB_KEY
from api.story_lines import heading, line
from infra.commands import exit_code_of
from infra.database import Database, first_line
from infra.migrate import check_at_head
from infra.settings import Settings
from infra.telemetry.logs import CORRELATION_ID
from schema.errors import HaulageError, Misconfigured

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from sqlalchemy import Row

    Story = AsyncIterator[tuple[Row[Any], Row[Any]]]

TOLD, NOTHING, CANNOT_TELL, AWAY = 0, 1, 2, 3
_PAGE = 500


def _ordinal(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 9):  # noqa: PLR2004 - fits int4
        msg = "the ordinal of an input is a number from 0 on"
        raise argparse.ArgumentTypeError(msg)
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m api.story", description=__doc__)
    parser.add_argument("name", help="the key of a job, or a correlation id")
    parser.add_argument("--input", type=_ordinal, metavar="N", help="only this input of the job")
    return parser


async def tell(
    database: Database,
    name: str,
    *,
    ordinal: int | None,
    by_relay: bool,
    say: Callable[[str], object],
) -> int:
    """Tell a story to its end; give the exit code. ``by_relay``: what is due goes over SQS."""
    chronicle, is_job = Chronicle(database), JOB_KEY.fullmatch(name) is not None
    if ordinal is not None and not is_job:
        say("story: only a job has inputs: give its key\n")
        return NOTHING
    if is_job:
        head = await chronicle.head(name, scope=None, ordinal=ordinal)
        if head is None or (ordinal is not None and ordinal >= head.total):
            say(f"story: there is no {'such input of' if head else 'job'} {name}\n")
            return NOTHING
        story = _of_job(chronicle, head, ordinal)
    elif CORRELATION_ID.fullmatch(name):
        story = _of_correlation(chronicle, name)
    else:
        say("story: this is neither the key of a job nor a correlation id\n")
        return NOTHING
    told, last = None, None
    async for head, step in story:
        if told != head.id:
            if last is not None:
                say(last.text())
            say(heading(head, ordinal=ordinal))
            told, last = head.id, None
        new = line(step, of_many=ordinal is None and head.total > 1, by_relay=by_relay)
        if last is not None and not last.takes(new):
            say(last.text())
            last = None
        last = last or new
    if last is None:
        say(f"story: there is no job, and no job of the correlation id, {name}\n")
        return NOTHING
    say(last.text())
    return TOLD


async def _of_job(chronicle: Chronicle, head: Row[Any], ordinal: int | None) -> Story:
    mark = START
    while True:
        page = await chronicle.of_job(head, ordinal=ordinal, after=mark, size=_PAGE)
        for step in page.steps:
            yield step
        if page.end is None:
            return
        mark = page.end


async def _of_correlation(chronicle: Chronicle, name: str) -> Story:
    mark = START
    while True:
        page = await chronicle.of_correlation(name, scope=None, after=mark, size=_PAGE)
        if page is None:
            return
        for step in page.steps:
            yield step
        if page.end is None:
            return
        mark = page.end


async def _main(arguments: argparse.Namespace, settings: Settings) -> int:
    async with Database.from_settings(settings, name="haulage story") as database:
        await check_at_head(database)
        return await tell(
            database,
            arguments.name,
            ordinal=arguments.input,
            by_relay=settings.consumer_mode == "sqs-consumer",
            say=sys.stdout.write,
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; give the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        settings = Settings.from_environment(os.environ)
        return asyncio.run(_main(arguments, settings))
    except HaulageError as error:
        sys.stderr.write(f"story: cannot tell: {error}\n")
        return CANNOT_TELL if isinstance(error, Misconfigured) else AWAY
    except DBAPIError as error:
        sys.stderr.write(f"story: cannot tell: {first_line(error)}\n")
    return CANNOT_TELL


if __name__ == "__main__":
    sys.exit(exit_code_of(main))
