"""No text from outside makes a pattern or a reader of ours work for more than a moment."""

import importlib
import itertools
import pkgutil
import re
import subprocess
import sys
from collections.abc import Callable, Iterator

import api
import consumer
import dispatcher
import infra
import schema
from api.tracing import read_baggage, read_traceparent, read_tracestate

# A backtracking pattern would need longer than the universe for most of these.
LIMIT_SECONDS = 60
PIECES = [" ", "\t", "a", "0", "-", "_", "/", ".", "@", "=", "'", '"', "\\", "\\u", "://", ",", ";"]
ATTACKS = [
    "a=b" + (";c=" + " " * 20) * 8 + '"',
    "a=b" + (";c=" + " " * 20) * 600 + '"',
    "a" + " " * 8_000 + '"',
    "a=" + " " * 8_000 + '"',
    "a=b" + " ; c" * 2_000 + '"',
    "a=b" + ";c = d" * 1_300 + "\\",
    "bearer" + " " * 2_000 + "\n",
    "2026-01-10T00:00:00." + "0" * 2_000,
    "J20260110_" + "0" * 2_000 + "!",
]


def attacks() -> Iterator[str]:
    yield from ATTACKS
    for first, second in itertools.product(PIECES, repeat=2):
        for begin, end in itertools.product(["", "a", "a="], ["", "\x00", '"']):
            yield begin + (first + second) * 100 + end
            yield begin + first * 100 + second * 100 + end


def patterns() -> dict[str, re.Pattern[str]]:
    found: dict[str, re.Pattern[str]] = {}
    for package in (api, consumer, dispatcher, infra, schema):
        for about in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if about.name.endswith("__main__") or "migrations" in about.name:
                continue
            for name, value in vars(importlib.import_module(about.name)).items():
                if isinstance(value, re.Pattern) and isinstance(value.pattern, str):
                    found[f"{about.name}.{name}"] = value
    return found


def attack() -> None:
    for name, pattern in patterns().items():
        sys.stdout.write(f"{name}\n")
        sys.stdout.flush()
        for text in attacks():
            pattern.fullmatch(text)
            pattern.search(text)
    readers: list[Callable[[str], object]] = [read_baggage, read_tracestate, read_traceparent]
    for read in readers:
        sys.stdout.write(f"{read.__name__}\n")
        sys.stdout.flush()
        for text in attacks():
            read(text)
            read(f"{text},{text}")
    sys.stdout.write("survived\n")


def test_no_text_makes_any_pattern_work_without_end() -> None:
    # In a process of its own: a pattern at work cannot be interrupted.
    code = f"from {__name__} import attack; attack()"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        told, _ = child.communicate(timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        told, _ = child.communicate()
    names = told.split()
    assert names[-1:] == ["survived"], f"stuck at {names[-1:]}"
    assert "api.jobs._IDEMPOTENCY_KEY" in names


def test_the_header_that_hung_the_process_is_dropped_at_once() -> None:
    code = (
        "from api.tracing import read_baggage\n"
        "assert read_baggage('a=b' + (';c=' + ' ' * 20) * 8 + '\"') is None\n"
        "assert read_baggage('ok=1,a=b' + (';c=' + ' ' * 20) * 8 + '\"') == 'ok=1'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=20)
