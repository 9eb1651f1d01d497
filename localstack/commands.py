"""The commands of `python -m localstack` and their exit codes."""

import argparse
import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

from localstack import children, database, demo, env_file, processes
from localstack.failures import Told, told_at_once
from localstack.interruption import Interrupted, Interruption
from localstack.processes import Identity, ProcessError
from localstack.settings import MODES, LocalSettings, SettingsError, asked
from localstack.stack import Stack

CHECKOUT = Path(__file__).resolve().parent.parent
INTERRUPTED = 130  # as a shell reports a process that Ctrl-C ended
_SAMPLE_JOB = '{"inputs":[{"indexKey":"MSFT","effectiveDate":20100301,"asofindicator":"ADJCLS"}]}'


def main(arguments: list[str], interruption: Interruption) -> int:
    """Run one command; every failure that can be expected is one message on stderr."""
    options = _parser().parse_args(arguments)
    given = {
        name: getattr(options, name, None) for name in ("mode", "consumers", "dispatchers", "port")
    }
    others = children.leave_others(os.environ)
    try:
        with told_at_once():
            stack = Stack(CHECKOUT, LocalSettings.read(os.environ, given), interruption)
            if options.command in ("up", "demo"):
                _tell_of_others(others, env_file.read(stack.env_path))
            return _run(stack, options, asked(os.environ, given))
    except Interrupted:
        print("\nInterrupted.", file=sys.stderr)
        return INTERRUPTED
    except Told:
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m localstack", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("up", "demo"):
        command = commands.add_parser(name)
        command.add_argument("--mode", metavar="|".join(MODES))
        command.add_argument("--consumers", metavar="N")
        command.add_argument("--dispatchers", metavar="N")
        command.add_argument("--port", metavar="N")
        if name == "up":
            command.add_argument("--detach", action="store_true")
    for name in ("down", "reset", "status", "logs", "psql"):
        commands.add_parser(name)
    commands.add_parser("sql").add_argument("statement")
    return parser


def _run(stack: Stack, options: argparse.Namespace, wanted: Mapping[str, str]) -> int:
    match options.command:
        case "up":
            return _up(stack, wanted, detach=options.detach)
        case "demo":
            return _demo(stack, wanted)
        case "down":
            print("Stopped; the database stays." if stack.down() else "Nothing runs.")
        case "reset":
            stack.reset()
            print("Stopped, and removed the data.")
        case "status":
            return _status(stack)
        case "logs":
            return _logs(stack)
        case "psql":
            return _psql(stack)
        case _:
            with stack.database_url() as url:
                print(asyncio.run(database.query(url, options.statement)))
    return 0


def _tell_of_others(others: Mapping[str, str], known: Mapping[str, str]) -> None:
    """Say which settings do not count here; those that the last stack gave itself need no word."""
    named = [name for name, value in sorted(others.items()) if value and value != known.get(name)]
    if named:
        print(f"Passed over, as the local stack has its own: {', '.join(named)}.", flush=True)


def _up(stack: Stack, wanted: Mapping[str, str], *, detach: bool) -> int:
    started = time.monotonic()
    children.check_settings(stack.settings.mode, stack.checkout, stack.interruption)
    if not stack.up(attached=not detach):
        _refuse_other_options(stack, wanted)
        print("Already up.")
        return _status(stack)
    print(f"Up after {time.monotonic() - started:.1f} s.")
    if detach:
        _status(stack)
        print("\n`make down` stops it.")
        return 0
    with stack.ended_afterwards():
        _status(stack)
        print("\nCtrl-C stops it.", flush=True)
        stack.watch()
    return 0


def _refuse_other_options(stack: Stack, wanted: Mapping[str, str]) -> None:
    """Raise if the stack that runs is not the one that was asked for."""
    differences = [
        f"{name} is {has}, not {value}" for name, has, value in stack.differences(wanted)
    ]
    if differences:
        raise SettingsError(
            f"A stack is up already, and of another kind: {'; '.join(differences)}.\n"
            "`make down` stops it and keeps its database; then start it anew."
        )


def _demo(stack: Stack, wanted: Mapping[str, str]) -> int:
    children.check_settings(stack.settings.mode, stack.checkout, stack.interruption)
    is_own = stack.up(attached=True)
    if not is_own:
        _refuse_other_options(stack, wanted)
        print("Using the stack that is up, and leaving it so.")
    with stack.ended_afterwards() if is_own else nullcontext():
        _tell_of_no_consumer(stack)
        demo.run(stack)
    return 0


def _status(stack: Stack) -> int:
    recorded = stack.state.processes()
    if not recorded:
        print("Nothing runs; `make up` or `make demo` starts it.")
        return 0
    for identity in recorded:
        if processes.is_gone(identity):
            print(f"{identity.name:<14} dead, see {_relative(identity.log)}")
            continue
        since = time.strftime("%H:%M:%S", time.localtime(identity.started_at))
        where = _where(identity)
        print(f"{identity.name:<14} pid {identity.pid:<8} since {since}  {where}")
    _print_ways_in(env_file.read(stack.env_path))
    _tell_of_no_consumer(stack)
    return 0 if stack.is_up() else 1


def _tell_of_no_consumer(stack: Stack) -> None:
    if not any(one.name.startswith("consumer-") for one in stack.state.processes()):
        print("\nNo consumer was asked for: jobs wait until one runs.", flush=True)


def _where(identity: Identity) -> str:
    if not identity.listens:
        return f"not listening on 127.0.0.1:{identity.port}"
    return ", ".join(f"127.0.0.1:{port}" for port in identity.listening_ports())


def _print_ways_in(values: Mapping[str, str]) -> None:
    """Print where to go and with what key, and a line that submits a job."""
    url, key = values.get("HAULAGE_URL", ""), values.get("HAULAGE_API_KEY", "")
    print(f"\nAPI        {url}  (to read and to try out: {url}/docs)")
    print(f"key        {key}")
    print(f"admin key  {values.get('HAULAGE_ADMIN_KEY', '')}")
    print(f"S3, SQS    {values.get('AWS_ENDPOINT_URL', '')}")
    print(f"database   {values.get('DATABASE_URL', '')}")
    print("All of it in a shell: . .local/env   Submit a job:\n")
    print(f"  curl -sS {url}/jobs -H 'Authorization: Bearer {key}' \\")
    print("    -H 'Content-Type: application/json' -d \\")
    print(f"    '{_SAMPLE_JOB}'")


def _logs(stack: Stack) -> int:
    logs = sorted((stack.folder / "logs").glob("*.log"))
    stack.interruption.check()
    names = [_relative(str(log)) for log in logs]
    if logs and not stack.state.processes():
        print("Nothing runs; the logs end so:", flush=True)
        return subprocess.run(["tail", "-n", "20", *names], check=False).returncode
    if logs:
        # It takes this process over, and hears whatever ends it: also that nobody reads on.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.execvp("tail", ["tail", "-n", "20", "-F", *names])
    print("No logs yet; `make up` or `make demo` makes some.")
    return 0


def _psql(stack: Stack) -> int:
    program = stack.postgres().program("psql")
    if not Path(program).exists():
        found = shutil.which("psql")
        if found is None:
            raise ProcessError('psql was not found; `make sql Q="select 1"` does without it.')
        program = found
    with stack.database_url() as url:
        # Ctrl-C in the console cancels a statement: psql hears it, and we only take a note.
        # Of PG… variables, one may name another server whatever the URL says; they are gone.
        environment = {**os.environ, "PSQL_HISTORY": str(stack.folder / "psql_history")}
        return subprocess.run([program, url], env=environment, check=False).returncode


def _relative(path: str) -> str:
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return path
