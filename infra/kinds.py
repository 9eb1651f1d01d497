"""The registry of kinds: those of this tree, and those that a setting names."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from schema.errors import Misconfigured
from schema.export import EXPORT
from schema.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

BUILT_IN = (EXPORT,)


def load_kinds(setting: str) -> Mapping[str, Kind]:
    """Give all kinds by name; ``setting`` is a list ``package.module:NAME, …``."""
    kinds = {kind.name: kind for kind in BUILT_IN}
    for reference in filter(None, (part.strip() for part in setting.split(","))):
        kind = load(reference, setting="HAULAGE_KINDS")
        if not isinstance(kind, Kind):
            raise Misconfigured(f"HAULAGE_KINDS: {reference} is not a schema.kinds.Kind")
        if kind.name in kinds:
            raise Misconfigured(f"HAULAGE_KINDS: {reference} names kind {kind.name!r} again")
        kinds[kind.name] = kind
    return kinds


def load(reference: str, *, setting: str) -> Any:  # noqa: ANN401 - whatever the module holds
    """Import ``package.module:NAME``; raise ``Misconfigured`` that names the setting."""
    module_name, _, attribute = reference.partition(":")
    if not module_name or not attribute:
        raise Misconfigured(f"{setting}: {reference!r} is not of the form package.module:NAME")
    try:
        return getattr(import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise Misconfigured(f"{setting}: cannot load {reference!r}: {error}") from error
