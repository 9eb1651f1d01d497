"""The registry of kinds: those of this tree, and those that a setting names."""

from __future__ import annotations

import dataclasses
import json
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from schema.errors import Misconfigured
from schema.export import EXPORT
from schema.kinds import ConcurrencyBounds, Kind
from schema.limits import (
    MOST_AT_ONCE,
    MOST_ATTEMPTS,
    MOST_BACKOFF_BASE_SECONDS,
    MOST_BACKOFF_CAP_SECONDS,
    MOST_CHUNK_INPUTS,
)
from schema.outcome import Backoff
from schema.stored_models import check_model

if TYPE_CHECKING:
    from collections.abc import Mapping

BUILT_IN = (EXPORT,)


class KindPolicy(BaseModel):
    """What an operator may set for a kind; what is left out stays as the kind says."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_attempts: int | None = Field(default=None, alias="maxAttempts", ge=1, le=MOST_ATTEMPTS)
    backoff_base_seconds: float | None = Field(
        default=None, alias="backoffBaseSeconds", gt=0, le=MOST_BACKOFF_BASE_SECONDS
    )
    backoff_cap_seconds: float | None = Field(
        default=None, alias="backoffCapSeconds", gt=0, le=MOST_BACKOFF_CAP_SECONDS
    )
    chunk_maximum: int | None = Field(
        default=None, alias="chunkMaximum", ge=1, le=MOST_CHUNK_INPUTS
    )
    concurrency_minimum: int | None = Field(
        default=None, alias="concurrencyMinimum", ge=1, le=MOST_AT_ONCE
    )
    concurrency_maximum: int | None = Field(
        default=None, alias="concurrencyMaximum", ge=1, le=MOST_AT_ONCE
    )


_NO_POLICY = "is no policy; there are: " + ", ".join(
    str(field.alias) for field in KindPolicy.model_fields.values()
)
_POLICIES = TypeAdapter(dict[str, KindPolicy])


def load_kinds(setting: str, policies: str = "") -> Mapping[str, Kind]:
    """Give all kinds by name; ``setting`` is a list ``package.module:NAME, …``.

    ``policies`` is HAULAGE_KIND_POLICIES: a JSON object with a ``KindPolicy`` for some kinds.
    """
    kinds = {kind.name: kind for kind in BUILT_IN}
    for reference in filter(None, (part.strip() for part in setting.split(","))):
        kind = load(reference, setting="HAULAGE_KINDS")
        if not isinstance(kind, Kind):
            raise Misconfigured(f"HAULAGE_KINDS: {reference} is not a schema.kinds.Kind")
        if kind.name in kinds:
            raise Misconfigured(f"HAULAGE_KINDS: {reference} names kind {kind.name!r} again")
        _check_models(kind)
        kinds[kind.name] = kind
    for name, policy in _read_policies(policies).items():
        if name not in kinds:
            known = ", ".join(sorted(kinds))
            raise Misconfigured(f"HAULAGE_KIND_POLICIES: {name!r} is no kind; there are: {known}")
        kinds[name] = _applied(kinds[name], policy)
    return kinds


def _check_models(kind: Kind) -> None:
    """Refuse models that cannot be stored and described; now all that they refer to is there."""
    for name, model in (("input_model", kind.input_model), ("options_model", kind.options_model)):
        try:
            check_model(model)
        except ValueError as error:
            raise Misconfigured(f"HAULAGE_KINDS: kind {kind.name!r}: {name}: {error}") from error


def choose_kinds(kinds: Mapping[str, Kind], setting: str) -> Mapping[str, Kind]:
    """Give the kinds that ``setting``, a list of names, chooses; all of them where it is empty."""
    chosen = [part.strip() for part in setting.split(",") if part.strip()]
    unknown = sorted(set(chosen) - set(kinds))
    if unknown:
        known = ", ".join(sorted(kinds))
        raise Misconfigured(
            f"HAULAGE_CONSUMER_KINDS: {', '.join(unknown)} is no kind; there are: {known}"
        )
    return {name: kinds[name] for name in chosen} or kinds


def _read_policies(text: str) -> dict[str, KindPolicy]:
    if not text.strip():
        return {}
    try:
        return _POLICIES.validate_python(json.loads(text))
    except ValidationError as error:
        problems = (
            ".".join(map(str, problem["loc"]))
            + ": "
            + (_NO_POLICY if problem["type"] == "extra_forbidden" else problem["msg"])
            for problem in error.errors(include_url=False)
        )
        raise Misconfigured(f"HAULAGE_KIND_POLICIES: {'; '.join(problems)}") from None
    except ValueError as error:
        raise Misconfigured(f"HAULAGE_KIND_POLICIES is not JSON: {error}") from error


def _applied(kind: Kind, policy: KindPolicy) -> Kind:
    base_seconds = policy.backoff_base_seconds or kind.backoff.base_seconds
    cap_seconds = policy.backoff_cap_seconds or kind.backoff.cap_seconds
    if cap_seconds < base_seconds:
        raise Misconfigured(
            f"HAULAGE_KIND_POLICIES: {kind.name}: backoffCapSeconds ({cap_seconds:g}) is less than"
            f" backoffBaseSeconds ({base_seconds:g})"
        )
    maximum = policy.chunk_maximum or kind.chunk.maximum
    at_least = policy.concurrency_minimum or kind.concurrency.minimum
    at_most = policy.concurrency_maximum or kind.concurrency.maximum
    if at_most is not None and at_most < at_least:
        raise Misconfigured(
            f"HAULAGE_KIND_POLICIES: {kind.name}: concurrencyMaximum ({at_most}) is less than"
            f" concurrencyMinimum ({at_least})"
        )
    return dataclasses.replace(
        kind,
        max_attempts=policy.max_attempts or kind.max_attempts,
        concurrency=ConcurrencyBounds(at_least, at_most),
        backoff=Backoff(base_seconds, cap_seconds),
        chunk=dataclasses.replace(
            kind.chunk, maximum=maximum, minimum=min(kind.chunk.minimum, maximum)
        ),
    )


def load(reference: str, *, setting: str) -> Any:  # noqa: ANN401 - whatever the module holds
    """Import ``package.module:NAME``; raise ``Misconfigured`` that names the setting."""
    module_name, _, attribute = reference.partition(":")
    if not module_name or not attribute:
        raise Misconfigured(f"{setting}: {reference!r} is not of the form package.module:NAME")
    try:
        return getattr(import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise Misconfigured(f"{setting}: cannot load {reference!r}: {error}") from error
    except (Exception, SystemExit) as error:
        # It is the user's module: anything may come of running it.
        told = f"{type(error).__name__}: {error}"
        raise Misconfigured(f"{setting}: cannot load {reference!r}: {told}") from error
