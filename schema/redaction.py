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
_MORE = "[a-z0-9_-]{0,24}"
_NAMES = (
    *(
        word + _MORE
        for word in (
            "password", "passwd", "passphrase", "pwd(?<![a-z0-9]pwd)", "secret", "credential",
            "cookie", "api[_-]?key", "access[_-]?key", "account[_-]?key", "private[_-]?key",
            "shared[_-]?key", "signing[_-]?key", "encryption[_-]?key",
        )
    ),
    "token", "signature", "sig(?<![a-z0-9]sig)",
)  # fmt: skip
_FIELD = re.compile(rf"(?:{'|'.join((*_NAMES, 'authorization'))})\Z")
# Between a name and its value. A text of JSON within another has its quotes behind backslashes.
_IS = r"""\\{0,4}['"]?[ \t]{0,4}[=:][ \t]{0,4}\\{0,4}"""
_NAMED = re.compile(
    "(?:"
    + "|".join(
        (
            *(name + _IS for name in _NAMES),
            rf"authorization{_IS}(?:[a-z][a-z0-9-]{{0,30}}[ \t]{{1,4}}(?=\S))?",
            # In an address these are secrets, elsewhere they are words of every day.
            *(sign + name for sign in (r"\?", "&") for name in ("key=", "code=", "auth=")),
        )
    )
    + r""")('(?:[^'\\]|\\.)*'?|"(?:[^"\\]|\\.)*"?|[^\s&'"]+)"""
)
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
    for found in _NAMED.finditer(lowered):
        start, end = found.span(1)
        quote = text[start] if text[start] in "'\"" else ""
        kept += text[done:start], quote, HIDDEN, quote
        done = end
    kept.append(text[done:])
    return "".join(kept)


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
