"""What no text of ours shows: credentials are taken out of what is stored, shown and logged."""

from __future__ import annotations

import re
from functools import lru_cache

# What is longer is cut, with a mark, before anything else is done with it.
TEXT_LIMIT = 8 * 1024
CUT = "… (cut)"
HIDDEN = "***"

# What names a secret, wherever it stands: in `name=value`, in `name: value`, as a field. All are in
# lower case and begin with a letter: so the search passes over what begins with no such letter.
_ANYWHERE = (
    "password", "passwd", "passphrase", "pwd(?<![a-z0-9]pwd)", "secret", "credential",
    "cookie", "api[_-]?key", "access[_-]?key", "account[_-]?key", "private[_-]?key",
    "shared[_-]?key", "signing[_-]?key", "encryption[_-]?key",
)  # fmt: skip
_AUTHORIZATION = "authorization"
# With more behind them these are counts and sizes.
_LAST = ("token", "signature", "sig(?<![a-z0-9]sig)")
_FIELD = re.compile(rf"{'|'.join((*_ANYWHERE, _AUTHORIZATION))}|(?:{'|'.join(_LAST)})\Z")
_MORE = "[a-z0-9_-]{0,24}"
# Between a name and its value. A text of JSON within another has its quotes behind backslashes.
_IS = r"""\\{0,4}['"]?\]?[ \t]{0,4}!?[=:][=>]{0,2}[ \t]{0,4}\\{0,4}"""
_NAMED = re.compile(
    "(?:"
    + "|".join(
        (
            *(word + _MORE + _IS for word in _ANYWHERE),
            *(name + _IS for name in _LAST),
            rf"{_AUTHORIZATION}{_MORE}{_IS}(?:[a-z][a-z0-9-]{{0,30}}[ \t]{{1,4}}(?=\S))?",
            # In an address these are secrets, elsewhere they are words of every day.
            *(sign + name for sign in (r"\?", "&") for name in ("key=", "code=", "auth=")),
        )
    )
    # What Python and others write before a quote.
    + r""")(?:[bru]{1,2}\\{0,4}(?=['"]))?"""
    # A quote that is doubled, or before a letter, ends nothing. Without a quote the group is empty.
    r"""('(?:[^'\\]|\\(?s:.)|'(?=['\w]))*'?|"(?:[^"\\]|\\(?s:.)|"(?=["\w]))*"?|(?=[^\s&]))"""
)
# A value without quotes ends at a space or at the next field of an address, but not in brackets.
_CLOSED_BY = {"(": ")", "[": "]", "{": "}", "<": ">"}
_UNBRACKETED = re.compile(r"[^\s&(\[{<]*")
_AFTER_BRACKETS = frozenset(",;)]}>'\"\\")
# Backslashes and the quote behind them are one: what opens a text closes it.
_QUOTE_OR_BRACKET = re.compile(r"""\\+['"]?|['"(\[{<>}\])]""")
# A text of any shape costs time in proportion to its length.
_SPACE = re.compile(r"\s|\Z")
# ASCII: a letter of another script is no part of a word of ours.
_BEARER = re.compile(r"(?ai)(bearer\s{1,8})\S+")
_API_KEY = re.compile(r"hlg_[A-Za-z0-9_-]+")
# One of these is in every text in which there is something to hide. Most have none: looking for
# words costs a hundredth of what the patterns do.
_OF_NAMES = (
    "key", "token", "secret", "passw", "passp", "pwd", "sig", "credential", "cookie", "auth",
    "code=",
)  # fmt: skip
SIGNS = ("://", "bearer", "hlg_", *_OF_NAMES)


def redact(text: str) -> str:
    """Take credentials out of a text, and cut it to ``TEXT_LIMIT``.

    Credentials are those inside URLs, bearer tokens, API keys, and the value of whatever has the
    name of a secret. Where it cannot be told where a secret ends, more is hidden, never less.
    """
    cut = len(text) > TEXT_LIMIT
    text = text[:TEXT_LIMIT]
    lowered = text.lower()
    if any(sign in lowered for sign in SIGNS):
        if "://" in lowered:
            text = _without_userinfo(text, is_cut=cut)
        if "bearer" in lowered:
            text = _BEARER.sub(r"\1***", text)
        if "hlg_" in lowered:
            text = _API_KEY.sub("hlg_***", text)
        if any(sign in lowered for sign in _OF_NAMES):
            text = _without_named(text)
    return text + CUT if cut else text


@lru_cache(maxsize=512)
def is_secret(name: str) -> bool:
    """Say whether a field of this name holds a secret."""
    return _FIELD.search(name[:TEXT_LIMIT].lower()) is not None


def _without_named(text: str) -> str:
    """Hide the value of each name of a secret, and keep the quotes around it."""
    # One letter grows when it is made small; the others stay where they are.
    lowered = text.replace("\N{LATIN CAPITAL LETTER I WITH DOT ABOVE}", "I").lower()
    kept: list[str] = []
    done = 0
    while found := _NAMED.search(lowered, done):
        start, end = found.span(1)
        quote = text[start] if start < end else ""
        kept += text[done:start], quote, HIDDEN, quote
        done = end if quote else _unquoted_end(lowered, start)
    kept.append(text[done:])
    return "".join(kept)


def _unquoted_end(text: str, start: int) -> int:
    """Find where a value without quotes ends: a word, a call, a list, or words and brackets."""
    end = start
    while True:
        found = _UNBRACKETED.match(text, end)
        assert found is not None, "it matches nothing at all"
        end = found.end()
        if text[end : end + 1] not in _CLOSED_BY:
            return end
        end = _bracket_end(text, end)
        if text[end : end + 1] in _AFTER_BRACKETS:
            return end


def _bracket_end(text: str, start: int) -> int:
    """Find where the bracket at ``start`` is closed: without a match, where the text ends."""
    opening, closing = text[start], _CLOSED_BY[text[start]]
    depth = 0
    within = ""
    for found in _QUOTE_OR_BRACKET.finditer(text, start):
        mark = found[0]
        if within:
            within = "" if mark == within else within
        elif mark[-1] in "'\"":
            within = mark
        elif mark == opening:
            depth += 1
        elif mark == closing:
            depth -= 1
            if not depth:
                return found.end()
    return len(text)


def _without_userinfo(text: str, *, is_cut: bool) -> str:
    """Hide what stands between ``://`` and the ``@`` of a URL, a password of any form among it."""
    kept: list[str] = []
    done = end = 0
    start = text.find("://") + 3
    while start > 2:  # noqa: PLR2004 - found
        if start > end:
            found = _SPACE.search(text, start)
            assert found is not None, "the end of the text is one"
            end = found.start()
        slash = text.find("/", start, end)
        authority_end = end if slash < 0 else slash
        if text.find(":", start, authority_end) < 0:
            sign = text.rfind("@", start, authority_end)
        else:
            # A password may hold slashes and signs; one whose end was cut off has no sign.
            sign = text.rfind("@", start, end)
            if sign < 0 and is_cut and authority_end == len(text):
                sign = end
        if sign >= 0:
            kept += text[done:start], HIDDEN
            done = sign
        start = text.find("://", max(start, done)) + 3
    kept.append(text[done:])
    return "".join(kept)
