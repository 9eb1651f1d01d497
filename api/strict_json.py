"""Reading JSON strictly and in windows: what cannot be stored is found here, with its pointer.

A body is read value by value, never as one tree, so that memory is bounded by the largest value
and not by what a body of brackets could become. Whatever Postgres could not keep is refused:
NaN and infinities, NUL and lone surrogates, repeated names, integers beyond 64 bits.
"""

from __future__ import annotations

import codecs
import json
import re
from http import HTTPStatus
from io import SEEK_END, BytesIO
from typing import IO, Any, NamedTuple

from api.json_scan import (
    Members,
    Unstorable,
    Unusual,
    scan_leniently,
    scan_plainly,
    scan_strictly,
)
from api.problems import BadField, BadFields, Problem, escape

WINDOW_BYTES = 1 << 20
_SPACES = " \t\n\r"
_SPACE = re.compile(f"[{_SPACES}]*")
_BLANK = re.compile(r"[ \t\r]*")
# Strings can hold what Postgres refuses only where one of these escapes stands.
_UNUSUAL = re.compile(r"\\u(?:0000|[dD][89a-fA-F])")
_UNSTORABLE = re.compile(r"[\x00\ud800-\udfff]")
_CONTAINERS = frozenset({dict, list})
# So much is read as one run at the most.
_RUN_CHARACTERS = 32 * 1024
# The longest that UTF-8 makes of a character.
_CHARACTER_BYTES = 4
_TWO_ON_A_LINE = re.compile(r"\}[ \t\r]*,[ \t\r]*\{")


class Run(NamedTuple):
    """What seems to be objects that follow each other: their text as one JSON array, of so many
    lines where each has its own, and where they end.
    """

    array: str
    lines: int | None
    end: int

    def documents(self, depth: int) -> list[Any] | None:
        """Read them, of at most ``depth`` levels; nothing if anything is out of the ordinary."""
        array = self.array
        try:
            decoded, end = scan_plainly(array, 0)
            members = sum(map(len, decoded))
            if array.count("[") > 1 or array.count("{") != len(decoded) or self.colons != members:
                # Some hold objects, lists or names twice; or only texts with such characters.
                decoded, end = scan_strictly(array, 0)
                if any(_is_deeper(element, depth) for element in decoded):
                    return None
        except (Unusual, json.JSONDecodeError, StopIteration, RecursionError, TypeError):
            return None
        if end != len(array) or set(map(type, decoded)) != {dict}:
            return None
        return decoded if self.lines in {None, len(decoded)} else None

    @property
    def colons(self) -> int:
        """Give the number of members of them all, or more: repeated ones count, and so do texts
        with colons.
        """
        return self.array.count(":")


class Source:
    """A UTF-8 body, read forward value by value through a window of about 1 MiB.

    ``passed`` is how many characters stand before what the file still holds. ``first_line`` is
    the number of its first line; without it lines do not count.
    """

    def __init__(
        self,
        body: bytes | bytearray | IO[bytes],
        *,
        passed: int = 0,
        first_line: int | None = None,
    ) -> None:
        self._file = BytesIO(body) if isinstance(body, bytes | bytearray) else body
        begin = self._file.tell()
        self._left = self._file.seek(0, SEEK_END) - begin
        self._file.seek(begin)
        self._decoder = codecs.getincrementaldecoder("utf-8")("strict")
        self._text = ""
        self._at = 0
        self._passed = passed
        self._passed_lines = first_line
        # Where the last value begins, or the one to come.
        self._begin = 0
        self._unusual = False
        # Up to here, nothing is tried as a run.
        self._singly_until = 0

    def peek(self) -> str:
        """Skip white space and give the next character, empty at the end."""
        if self._text[self._at : self._at + 1].strip():
            self._begin = self._at
            return self._text[self._at]
        while True:
            match = _SPACE.match(self._text, self._at)
            assert match is not None, "the pattern matches nothing, too"
            self._at = match.end()
            if self._at < len(self._text):
                self._begin = self._at
                return self._text[self._at]
            if not self._fill():
                return ""

    def take(self, *wanted: str) -> str:
        """Take one of the characters that the grammar allows here; else the body is not JSON."""
        found = self.peek()
        if found not in wanted or not found:
            end = "" if found else "the body ends, "
            raise self.not_json(f"{end}expected {' or '.join(wanted)}")
        self._at += 1
        return found

    def value(self, pointer: str, bad: BadFields, *, limit: int, depth: int) -> tuple[Any, str]:
        """Read one value of at most ``limit`` characters and ``depth`` levels: it and its text.

        What is wrong inside goes to ``bad``. A value far beyond the limit ends the reading.
        """
        self.peek()
        while len(self._text) - self._at <= limit and self._fill():
            pass
        start = self._at
        try:
            decoded, self._at = self._decode(start, pointer, bad, depth)
        except (json.JSONDecodeError, StopIteration) as error:
            if self._is_cut(error):
                bad.add(pointer, f"is longer than {limit} characters")
                raise bad.problem() from None
            is_cut_off = start < len(self._text) and self._is_end(error)
            what = "the body ends within a value" if is_cut_off else "no JSON value"
            raise self.not_json(what, pointer, at=_where(error)) from None
        except RecursionError:
            bad.add(pointer, f"is nested deeper than {depth} levels")
            raise bad.problem() from None
        if self._at - start > limit:
            bad.add(pointer, f"is longer than {limit} characters")
            if self._at == len(self._text) and self._more:
                raise bad.problem()
        return decoded, self._text[start : self._at]

    def run(self, *, limit: int, by_lines: bool) -> Run | None:
        """Find the objects next to come, by commas or by lines, all within ``limit`` bytes.

        Nothing is read before ``pass_run``. Of nothing, or if what is there cannot be stored,
        there is no run, and not before whatever stood in the way was read value by value.
        """
        self.peek()
        if self._passed + self._at < self._singly_until:
            return None
        most = min(limit, _RUN_CHARACTERS)
        while len(self._text) - self._at <= most and self._fill():
            pass
        piece = self._text[self._at : self._at + most]
        if not piece.isascii():
            piece = piece[: most // _CHARACTER_BYTES]
        searched = self._at + len(piece)
        # Where this is the end of no object, the array does not parse: what a prefix of JSON
        # means does not depend on what follows.
        if by_lines:
            piece = piece[: piece.rfind("\n") + 1].rstrip(_SPACES)
            piece = piece if piece.endswith("}") else ""
        else:
            piece = piece[: piece.rfind("},") + 1]
        end = self._at + len(piece)
        if (
            not piece
            or (self._unusual and _UNUSUAL.search(piece))
            or (by_lines and _TWO_ON_A_LINE.search(piece))
        ):
            until = end if piece else max(searched, self._at + 1)
            self._singly_until = self._passed + until
            return None
        if by_lines:
            return Run(f"[{piece}]".replace("\n", ","), piece.count("\n") + 1, end)
        return Run(f"[{piece}]", None, end)

    def pass_run(self, run: Run) -> None:
        """Go on behind the run."""
        self._at = run.end

    def read_singly(self, run: Run) -> None:
        """Read what the run holds value by value."""
        self._singly_until = self._passed + run.end

    def end_line(self, pointer: str) -> bool:
        """Take the end of the line of a value; say whether one follows that is not blank."""
        while True:
            match = _BLANK.match(self._text, self._at)
            assert match is not None, "the pattern matches nothing, too"
            self._at = match.end()
            if self._at < len(self._text):
                break
            if not self._fill():
                return False
        if self._text[self._at] != "\n":
            raise self.not_json("expected the end of the line", pointer)
        return bool(self.peek())

    def line(self) -> int | None:
        """Give the line, from 1, on which the value in hand begins, where lines count."""
        if self._passed_lines is None:
            return None
        return self._passed_lines + self._text.count("\n", 0, self._begin)

    def not_json(
        self, detail: str, pointer: str = "", *, at: int | None = None, line: int | None = None
    ) -> Problem:
        """Make the 400 that says where the body stops being JSON: inside of what, on which line."""
        position = self._passed + (self._at if at is None else at)
        line = line or self.line()
        where = f"at character {position} of the body" + (f", line {line}" if line else "")
        errors = [BadField("pointer", pointer, detail, line)] if line else []
        return Problem(HTTPStatus.BAD_REQUEST, "not-json", f"{detail} {where}", errors=errors)

    @property
    def _more(self) -> bool:
        return self._left > 0

    def _fill(self) -> bool:
        if not self._more:
            return False
        piece = self._file.read(min(WINDOW_BYTES, self._left))
        self._left -= len(piece)
        try:
            text = self._decoder.decode(piece, final=not self._more)
        except UnicodeDecodeError as error:
            line = self._passed_lines
            if line is not None:
                line += self._text.count("\n") + error.object.count(b"\n", 0, error.start)
            at = len(self._text) + error.start
            raise self.not_json("not UTF-8", at=at, line=line) from None
        self._passed += self._at
        if self._passed_lines is not None:
            self._passed_lines += self._text.count("\n", 0, self._at)
        # What ends here has begun on this line, or was refused for that.
        self._begin = max(self._begin - self._at, 0)
        self._text = self._text[self._at :] + text
        self._at = 0
        self._unusual = "\\u" in self._text and _UNUSUAL.search(self._text) is not None
        return True

    def _decode(self, start: int, pointer: str, bad: BadFields, depth: int) -> tuple[Any, int]:
        if not self._unusual:
            try:
                decoded, end = scan_strictly(self._text, start)
            except Unusual:
                pass
            else:
                if not _is_deeper(decoded, depth):
                    return decoded, end
        decoded, end = scan_leniently(self._text, start)
        return _examined(decoded, pointer, bad, depth, depth), end

    def _is_cut(self, error: json.JSONDecodeError | StopIteration) -> bool:
        """Say whether the value goes on beyond the window."""
        near_the_end = len(self._text) - _where(error) < len("-Infinity")
        return self._more and (near_the_end or self._is_end(error))

    def _is_end(self, error: json.JSONDecodeError | StopIteration) -> bool:
        """Say whether all was well up to the end of the window."""
        unterminated = isinstance(error, json.JSONDecodeError) and error.msg.startswith("Untermin")
        return unterminated or _where(error) == len(self._text)


def _where(error: json.JSONDecodeError | StopIteration) -> int:
    return error.pos if isinstance(error, json.JSONDecodeError) else int(error.value)


def _is_deeper(value: object, levels: int) -> bool:
    if type(value) not in _CONTAINERS:
        return False
    members: Any = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(
        _is_deeper(member, levels - 1) for member in members if type(member) in _CONTAINERS
    )


def _examined(value: Any, pointer: str, bad: BadFields, levels: int, depth: int) -> Any:
    """Give the value as plain Python, noting every place that could not be stored."""
    if isinstance(value, Unstorable):
        bad.add(pointer, value.reason)
        return None
    if isinstance(value, str):
        if _UNSTORABLE.search(value):
            bad.add(pointer, "holds a NUL character or half of a surrogate pair")
        return value
    if not isinstance(value, list):
        return value
    if levels == 0:
        bad.add(pointer, f"is nested deeper than {depth} levels")
        return None
    if not isinstance(value, Members):
        return [
            _examined(member, f"{pointer}/{position}", bad, levels - 1, depth)
            for position, member in enumerate(value)
        ]
    members: dict[str, Any] = {}
    for name, member in value:
        place = f"{pointer}/{escape(name)}"
        if name in members:
            bad.add(place, "is given twice")
        if _UNSTORABLE.search(name):
            bad.add(place, "the name holds a NUL character or half of a surrogate pair")
        members[name] = _examined(member, place, bad, levels - 1, depth)
    return members
