"""What a message may hold: sizes, attributes and characters as SQS counts and checks them."""

from __future__ import annotations

import base64
import hashlib
import re
import struct
from typing import TYPE_CHECKING, Any

from tests.stubs.sqs.errors import SqsError, invalid

if TYPE_CHECKING:
    from collections.abc import Mapping

ATTRIBUTE_LIMIT = 10
# XML 1.0's characters, the only ones that SQS takes.
_ILLEGAL = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ATTRIBUTE_NAME = re.compile(r"(?!(?i:aws|amazon)\.)(?!\.)[A-Za-z0-9_.-]{1,256}(?<!\.)")
_TYPES = ("String", "Number", "Binary")
_STRING, _BINARY = b"\x01", b"\x02"


def md5_of_body(body: str) -> str:
    """Give MD5OfMessageBody."""
    return hashlib.md5(body.encode(), usedforsecurity=False).hexdigest()


def md5_of_attributes(attributes: Mapping[str, Any]) -> str | None:
    """Give MD5OfMessageAttributes: name, type and value of each, each with its length."""
    if not attributes:
        return None
    digest = hashlib.md5(usedforsecurity=False)
    for name in sorted(attributes):
        attribute = attributes[name]
        for text in (name, attribute["DataType"]):
            digest.update(_with_length(text.encode()))
        is_binary = "BinaryValue" in attribute
        digest.update(_BINARY if is_binary else _STRING)
        digest.update(_with_length(_value(attribute)))
    return digest.hexdigest()


def size_bytes(body: str, attributes: Mapping[str, Any]) -> int:
    """Give the size that counts against the limits: body, names, types and values."""
    size = len(body.encode())
    for name, attribute in attributes.items():
        size += len(name.encode()) + len(attribute["DataType"].encode()) + len(_value(attribute))
    return size


def check(body: object, attributes: Mapping[str, Any], *, limit_bytes: int) -> int:
    """Raise what SQS raises for a message that it does not take; give its size."""
    if not isinstance(body, str):
        raise SqsError("MissingParameter", "The request must contain the parameter MessageBody.")
    if not body:
        raise invalid("The request must contain a message body of at least one character.")
    if not body.isascii() or not body.isprintable():
        _check_characters("message body", body)
    if len(attributes) > ATTRIBUTE_LIMIT:
        raise invalid(
            f"Number of message attributes [{len(attributes)}] exceeds the allowed maximum [10]."
        )
    for name, attribute in attributes.items():
        _check_attribute(name, attribute)
    size = size_bytes(body, attributes)
    if size > limit_bytes:
        raise invalid(
            "One or more parameters are invalid. "
            f"Reason: Message must be shorter than {limit_bytes} bytes."
        )
    return size


def _check_attribute(name: str, attribute: Mapping[str, Any]) -> None:
    if not _ATTRIBUTE_NAME.fullmatch(name):
        raise invalid(f"The message attribute name '{name}' is invalid.")
    data_type = str(attribute.get("DataType", ""))
    if data_type.partition(".")[0] not in _TYPES:
        raise invalid(f"The type of message attribute '{name}' is invalid.")
    value = attribute.get("BinaryValue" if data_type.startswith("Binary") else "StringValue")
    if not value:
        raise invalid(f"Message attribute '{name}' must contain a non-empty value.")
    if not (value.isascii() and value.isprintable()):
        _check_characters(f"message attribute '{name}'", value)


def _check_characters(what: str, text: str) -> None:
    if _ILLEGAL.search(text):
        if what == "message body":
            raise SqsError("InvalidMessageContents", "Invalid characters in the message body.")
        raise invalid(f"Invalid characters found in {what}.")


def _value(attribute: Mapping[str, Any]) -> bytes:
    if "BinaryValue" in attribute:
        return base64.b64decode(attribute["BinaryValue"])
    return str(attribute.get("StringValue", "")).encode()


def _with_length(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data
