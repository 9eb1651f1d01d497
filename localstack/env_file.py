"""The file `.local/env`: what a client of the running stack needs, for a shell to source."""

import os
import shlex
from collections.abc import Mapping
from pathlib import Path


def write(path: Path, values: Mapping[str, str]) -> None:
    """Replace the file as a whole; it holds keys, so only its owner may read it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [
        "# Written by the stack: `. .local/env` before curl, psql or aws.\n",
        '# An aws of version 1 needs --endpoint-url "$AWS_ENDPOINT_URL" for sqs.\n',
    ]
    lines += [f"export {name}={shlex.quote(value)}\n" for name, value in values.items()]
    unfinished = path.with_suffix(".unfinished")
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.writelines(lines)
    unfinished.replace(path)


def read(path: Path) -> dict[str, str]:
    """The values as they were written; nothing when there is no file."""
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        return {}
    values = {}
    for line in lines:
        match shlex.split(line, comments=True):
            case ["export", assignment]:
                name, _, value = assignment.partition("=")
                values[name] = value
            case _:
                continue
    return values
