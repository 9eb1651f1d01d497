"""The models of a kind as they are stored: the API writes them, and consumers read them again."""

from __future__ import annotations

import json
import warnings
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import BaseModel, Secret, SecretBytes, SecretStr, TypeAdapter, ValidationError
from pydantic.json_schema import models_json_schema
from pydantic_core import SchemaSerializer, SchemaValidator

from schema.limits import INT8

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pydantic_core.core_schema import CoreConfig

_FIELDS = frozenset({"model-field", "typed-dict-field", "dataclass-field"})
_OWNERS = frozenset({"model", "dataclass", "typed-dict"})
# What a node of a core schema holds beside the nodes below it.
_NO_NODES = frozenset({"computed_fields", "config", "default", "metadata", "serialization"})
# What these factories make is the same each time.
_CONTAINERS = (dict, list, tuple)
# What takes no value but literals, truth values, and those of the nodes below it; and functions.
_PLAIN = frozenset(
    {
        *("model-fields", "model-field", "default", "nullable", "bool", "literal"),
        *("function-after", "no-info", "with-info"),
    }
)
# What is written of these has the order in which names were sent, or one of the process's own.
_WITHOUT_ORDER = frozenset({"any", "dict", "frozenset", "set"})


def stored_text(serializer: SchemaSerializer, value: object) -> str:
    """Give the JSON that is stored of what a model, or a list of them, holds."""
    return serializer.to_json(value, by_alias=True, round_trip=True).decode()


def check_model(model: type[BaseModel]) -> None:
    """Raise ``ValueError`` if a model has no JSON schema, or does not read what is stored of it.

    Names, secrets and defaults tell, of the models inside as well. What validators and serializers
    of the model's own do cannot be seen: they are trusted.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            json.dumps(models_json_schema([(model, "validation")])[1])
        except Exception as error:  # it runs code of the model: anything may come of it
            told = str(error).partition("\n")[0]
            msg = f"{model.__name__} has no JSON schema: {type(error).__name__}: {told}"
            raise ValueError(msg) from error
        whole: Any = TypeAdapter(model).core_schema
        for node in _nodes(whole, as_written=True):
            problem = _problem(node, whole.get("definitions", []))
            if problem:
                msg = f"{node.where} {problem}"
                raise ValueError(msg)


@lru_cache(maxsize=256)
def is_repeatable(model: type[BaseModel]) -> bool:
    """Say whether the same request makes the same text of it, in any process and order of names.

    Of functions nobody knows, but one that is cached says so itself.
    """
    return not any(map(_may_vary, _nodes(TypeAdapter(model).core_schema)))


@lru_cache(maxsize=256)
def holds_plain_values(model: type[BaseModel]) -> bool:
    """Say whether all that can be read into it is texts, truth values and numbers of 64 bits.

    Then what was read has no levels and no number that cannot be kept, and ``model_fields_set``
    are the names that were given.
    """
    root, *nodes = _nodes(TypeAdapter(model).core_schema)
    return (
        is_repeatable(model)
        and root.schema["type"] == "model"
        and root.schema["schema"]["type"] == "model-fields"
        and _are_named_apart(root.schema["schema"]["fields"])
        and all(map(_is_plain, nodes))
    )


class _Node(NamedTuple):
    """A node of a core schema, the model and field it belongs to, and that model's config."""

    schema: Mapping[str, Any]
    where: str
    config: CoreConfig


def _nodes(
    inside: object,
    where: str = "",
    name: str = "",
    config: CoreConfig | None = None,
    *,
    as_written: bool = False,
) -> Iterator[_Node]:
    """Give each node of a core schema, from the outside in.

    With ``as_written``, nothing is given of what a function writes in its own way.
    """
    if isinstance(inside, list | tuple):
        for member in inside:
            yield from _nodes(member, where, "", config, as_written=as_written)
    if not isinstance(inside, dict):
        return
    # Where that is no text, these are fields by their names, or the members of a union.
    sort = inside.get("type")
    if isinstance(sort, str):
        config = inside.get("config", config)
        if sort in _OWNERS:
            where = getattr(inside.get("cls"), "__name__", where)
        elif sort in _FIELDS:
            where = f"{where}.{inside.get('name', name)}"
        yield _Node(inside, where, config or {})
        writer = inside.get("serialization", {})
        if as_written and writer.get("type") == "function-plain" and not _is_mask(writer):
            return
    for key, below in inside.items():
        if not isinstance(sort, str) or key not in _NO_NODES:
            yield from _nodes(below, where, key, config, as_written=as_written)


def _problem(node: _Node, definitions: list[Any]) -> str | None:
    """Say why what is stored of a node is not what is read."""
    schema = node.schema
    if schema["type"] in _FIELDS:
        return _problem_of_field(node)
    if schema["type"] == "default" and "default" in schema:
        return _problem_of_default(node, definitions)
    if schema["type"] == "bytes":
        written = node.config.get("ser_json_bytes", "utf8")
        read = node.config.get("val_json_bytes", "utf8")
        return f"is written as {written} and read as {read}" if written != read else None
    if _is_mask(schema.get("serialization", {})):
        return "is a secret, of which only asterisks are stored"
    return None


def _problem_of_field(node: _Node) -> str | None:
    field = node.schema
    name = node.where.rpartition(".")[2]
    if field.get("serialization_exclude") or field.get("init_only"):
        return "is not stored"
    leaves_out = field.get("serialization_exclude_if")
    if leaves_out is not None and not _leaves_out_default(leaves_out, field["schema"]):
        return "is not always stored, and its default is not what is left out"
    if field.get("init", True) is False and node.config.get("extra_fields_behavior") == "forbid":
        return "is stored, and not read"
    written = field.get("serialization_alias", name)
    read = _names_read(field.get("validation_alias"), name, node.config)
    if written not in read:
        return f"is stored as {written!r}, and read from {' or '.join(map(repr, read))}"
    return None


def _leaves_out_default(leaves_out: Callable[[object], bool], schema: Mapping[str, Any]) -> bool:
    """Say whether what is left out of what is stored can be a default, which is read instead."""
    if "default" not in schema:
        return "default_factory" in schema
    try:
        return bool(leaves_out(schema["default"]))
    except Exception:  # noqa: BLE001 - it is a function of the model
        return False


def _names_read(alias: str | list[Any] | None, name: str, config: CoreConfig) -> list[object]:
    """Give what a field may be called in what is read; a path into a value stays a list."""
    if alias is None:
        return [name]
    paths = alias if isinstance(alias, list) and isinstance(alias[0], list) else [alias]
    read: list[object] = [name] if config.get("validate_by_name") else []
    if config.get("validate_by_alias", True):
        read += [path[0] if isinstance(path, list) and len(path) == 1 else path for path in paths]
    return read


def _problem_of_default(node: _Node, definitions: list[Any]) -> str | None:
    default = node.schema["default"]
    if "serialization" in node.schema or node.schema["schema"]["type"] == "missing-sentinel":
        # It is written by the model's own serializer, which needs all of it, or not at all.
        return None
    schema: Any = {"type": "definitions", "schema": node.schema, "definitions": definitions}
    try:
        text = stored_text(SchemaSerializer(schema, node.config), default)
        stored = json.loads(text, parse_constant=_refuse)
    except Exception as error:  # noqa: BLE001 - of a serializer of the model's own, anything
        return f"has a default that cannot be stored: {type(error).__name__}: {error}"
    if stored is None and default is not None:
        return f"has the default {default!r}, of which null is stored"
    try:
        SchemaValidator(schema, node.config).validate_json(text)
    except ValidationError as error:
        reason = error.errors(include_url=False)[0]["msg"]
        return f"has a default that it does not read: {text}: {reason}"
    except Exception:  # noqa: BLE001 - a validator that wants to know of the rest of the model
        return None
    return None


def _refuse(constant: str) -> None:
    msg = f"{constant} is not JSON"
    raise ValueError(msg)


def _may_vary(node: _Node) -> bool:
    schema = node.schema
    if schema["type"] in _WITHOUT_ORDER or schema.get("post_init") or schema.get("custom_init"):
        return True
    if schema.get("serialization", {}).get("type", "").startswith("function-"):
        return True
    if node.config.get("extra_fields_behavior") == "allow":
        return True
    if "default_factory" in schema:
        return schema["default_factory"] not in _CONTAINERS
    if schema["type"].startswith("function-"):
        return not hasattr(schema["function"]["function"], "cache_info")
    return False


def _are_named_apart(fields: Mapping[str, Any]) -> bool:
    """Say whether a name that was given sets one field, or none."""
    names: list[object] = []
    for own, field in fields.items():
        alias = field.get("validation_alias", own)
        if not isinstance(alias, str):
            return False
        names += {own, alias}
    return len(names) == len(set(names))


def _is_plain(node: _Node) -> bool:
    schema, config = node.schema, node.config
    if schema["type"] in {"int", "bool"} and not schema.get("strict", config.get("strict")):
        # Of a fraction, or a number with an exponent, they would take what it comes to.
        return False
    if schema["type"] == "int":
        least, most = schema.get("ge", schema.get("gt")), schema.get("le", schema.get("lt"))
        return least is not None and most is not None and least >= INT8[0] and most <= INT8[-1]
    if schema["type"] == "str":
        return not schema.get("coerce_numbers_to_str", config.get("coerce_numbers_to_str"))
    return schema["type"] in _PLAIN


def _is_mask(serialization: Mapping[str, Any]) -> bool:
    return serialization.get("function") in _masks()


@cache
def _masks() -> tuple[object, ...]:
    """Give the functions by which pydantic writes secrets."""
    secrets = (TypeAdapter[Any](secret) for secret in (SecretStr, SecretBytes, Secret[str]))
    nodes = (node.schema for secret in secrets for node in _nodes(secret.core_schema))
    return tuple(node["serialization"]["function"] for node in nodes if "serialization" in node)
