"""docs/logs.md lists every event that the code logs, with its levels and fields, and no other."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
PAGE = CHECKOUT / "docs" / "logs.md"
ROW = re.compile(
    r"^\| `([a-z_.]+)` \| ([a-z, ]+) \| ([a-z, ]+) \| ([^|]*)\| ([^|]+) \|$", re.MULTILINE
)
LEVELS = {"exception": "error"} | {
    name: name for name in ("debug", "info", "warning", "error", "critical")
}
# What every line has, or every line of a job, whether it is said in the call or not.
COMMON = {"job", "entry", "correlation_id", "exc_info"}
# Hands on what children and their libraries log: these are no events of ours.
HANDED_ON = {"consumer/processors/output.py"}


@dataclass
class Event:
    levels: set[str] = field(default_factory=set)
    fields: set[str] = field(default_factory=set)
    processes: set[str] = field(default_factory=set)
    is_open: bool = False


def calls() -> Iterator[tuple[str, ast.Call]]:
    for folder in ("api", "consumer", "dispatcher", "infra", "schema"):
        for path in sorted((CHECKOUT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                match node:
                    case ast.Call(func=ast.Attribute(value=ast.Name(id="log"))):
                        yield str(path.relative_to(CHECKOUT)), node


def logged() -> dict[str, Event]:
    events: dict[str, Event] = {}
    for path, call in calls():
        match call:
            case ast.Call(func=ast.Attribute(attr=level), args=[ast.Constant(value=str(name))]) if (
                level in LEVELS
            ):
                event = events.setdefault(name, Event())
                event.levels.add(LEVELS[level])
                event.fields |= {word.arg for word in call.keywords if word.arg}
                event.is_open |= any(word.arg is None for word in call.keywords)
                if not path.startswith(("infra/", "schema/")):
                    event.processes.add(path.split("/")[0])
            case _:
                assert path in HANDED_ON, f"{path}:{call.lineno}: an event needs a constant name"
    return events


def listed() -> dict[str, tuple[set[str], set[str], set[str]]]:
    rows = ROW.findall(PAGE.read_text())
    names = [name for name, *_ in rows]
    assert len(names) == len(set(names)), "an event is listed once"
    return {
        name: (
            set(levels.split(", ")),
            set(processes.split(", ")),
            set(re.findall(r"`([a-z_]+)`", fields)),
        )
        for name, levels, processes, fields, _ in rows
    }


def test_every_event_in_the_code_is_listed_and_every_listed_one_is_in_the_code() -> None:
    ours, handed_on = set(logged()), {"processor.output"}
    assert set(listed()) == ours | handed_on
    assert len(ours) > 50


def test_levels_fields_and_processes_are_those_of_the_code() -> None:
    page = listed()
    for name, event in logged().items():
        levels, processes, fields = page[name]
        assert levels == event.levels, name
        said = event.fields - COMMON
        assert (fields >= said) if event.is_open else (fields - COMMON == said), (name, said)
        assert processes >= event.processes, name
        assert processes <= {"api", "consumer", "dispatcher", "any"}, name


def test_an_event_is_named_after_its_part_and_what_happened() -> None:
    for name in logged():
        assert re.fullmatch(r"[a-z]+\.[a-z_]+", name), name
