"""Names and metadata of objects: what may become a key, and how text travels in headers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import unquote

from schema.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping

_KEY = re.compile(r"[A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]+)*")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_NO_LABEL = re.compile(r"\.\.|\.-|-\.")
_FOUR_NUMBERS = re.compile(r"\d+(?:\.\d+){3}")
_METADATA_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_KEY_BYTES = 1_024
_METADATA_BYTES = 2_048
_DOTS = frozenset({".", ".."})


def is_bucket(name: str) -> bool:
    """Say whether S3 could have a bucket of this name."""
    is_well_formed = _BUCKET.fullmatch(name) and not _NO_LABEL.search(name)
    return bool(is_well_formed) and not _FOUR_NUMBERS.fullmatch(name)


def checked_key(key: str) -> str:
    """Return the key if it is plain ASCII and cannot leave its prefix; else ``InvalidInput``."""
    whole = _KEY.fullmatch(key) is not None and len(key) <= _KEY_BYTES
    if not whole or _DOTS & set(key.split("/")):
        raise InvalidInput(f"{key[:100]!r} cannot be the key of an object")
    return key


def uri_of(bucket: str, key: str) -> str:
    """Give the URI under which an object is registered."""
    return f"s3://{bucket}/{key}"


def split_uri(uri: str) -> tuple[str, str]:
    """Give bucket and key of a URI; raise ``InvalidInput`` if it is not one of ours."""
    scheme, _, rest = uri.partition("://")
    bucket, _, key = rest.partition("/")
    if scheme != "s3" or not is_bucket(bucket):
        raise InvalidInput(f"{uri[:100]!r} is not of the form s3://bucket/key")
    return bucket, checked_key(key)


def encoded(metadata: Mapping[str, str]) -> dict[str, str]:
    """Make metadata fit for headers: what is not printable ASCII becomes ``%XX``, as in URLs.

    Signing would break on anything else, and on spaces at the ends, which proxies cut off.
    """
    headers = {}
    for name, value in metadata.items():
        if not _METADATA_NAME.fullmatch(name):
            raise InvalidInput(f"{name[:100]!r} cannot name metadata of an object")
        headers[name] = _encoded(value)
    size = sum(len(name) + len(value) for name, value in headers.items())
    if size > _METADATA_BYTES:
        raise InvalidInput(f"metadata takes {size} bytes, an object holds {_METADATA_BYTES}")
    return headers


def decoded(headers: Mapping[str, str]) -> dict[str, str]:
    """Undo ``encoded``."""
    return {name: unquote(value) for name, value in headers.items()}


def _encoded(value: str) -> str:
    inner = value.strip(" ")
    start = len(value) - len(value.lstrip(" "))
    edges = ("%20" * start, "%20" * (len(value) - start - len(inner)))
    text = "".join(
        character
        if " " <= character <= "~" and character != "%"
        else "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "replace"))
        for character in inner
    )
    return text.join(edges)
