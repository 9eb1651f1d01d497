"""A database URL as psql writes it, taken apart once: whoever connects connects alike.

The pool (SQLAlchemy), the listener (asyncpg), the migrations and the commands all take the same
arguments of ``asyncpg.connect`` from here. What is not understood is refused, never passed over:
a limit or a certificate that silently did not count would be worse than a process that is down.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlencode

import asyncpg
from sqlalchemy.exc import MissingGreenlet
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.util.concurrency import in_greenlet

from schema.errors import Misconfigured

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from infra.settings import Settings

_URL = re.compile(
    r"postgres(?:ql)?(?:\+\w+)?://"
    r"(?:(?P<user>[^:/@?#]*)(?::(?P<password>[^@]*))?@)?"
    r"(?P<hosts>[^/?#@]*)(?:/(?P<database>[^?]*))?(?:\?(?P<query>.*))?"
)
_PLACE = re.compile(r"(?P<host>\[[^\]]*\]|[^:\[\]]*)(?::(?P<port>\d+))?")
# What asyncpg itself reads out of a URL, and nowhere else: it makes the TLS context of these.
_TLS = frozenset({
    "sslmode", "sslcert", "sslkey", "sslpassword", "sslrootcert", "sslcrl", "sslnegotiation",
    "ssl_min_protocol_version", "ssl_max_protocol_version",
})  # fmt: skip
_TLS_FILES = ("sslcert", "sslkey", "sslrootcert", "sslcrl")
_CHOICES = {
    "sslmode": {"disable", "allow", "prefer", "require", "verify-ca", "verify-full"},
    "sslnegotiation": {"postgres", "direct"},
    "target_session_attrs": {
        "any", "primary", "standby", "read-write", "read-only", "prefer-standby",
    },
}  # fmt: skip
_AS_THEY_ARE = frozenset({"target_session_attrs", "passfile", "krbsrvname", "gsslib"})
_SERVER_SETTINGS = frozenset({"application_name", "options"})
_KNOWN = (
    _TLS
    | _AS_THEY_ARE
    | _SERVER_SETTINGS
    | {"host", "port", "user", "password", "dbname", "connect_timeout"}
)
_HIGHEST_PORT = 65_535
_LONGEST_CONNECT_SECONDS = 3_600


def asyncpg_arguments(url: str, *, setting: str = "DATABASE_URL") -> dict[str, Any]:
    """Give ``asyncpg.connect``'s arguments for a URL; raise ``Misconfigured`` naming what is wrong.

    What the URL leaves open is left to the driver's defaults and the ``PG…`` variables.
    """
    parts = _URL.fullmatch(url)
    if parts is None:
        raise Misconfigured(f"{setting} is not a URL such as postgresql://user@host:5432/name")
    query = _query(parts["query"] or "", setting)
    hosts, ports = _places(parts["hosts"], setting)
    if "host" in query:
        hosts, ports = [unquote(host) for host in query["host"].split(",")], ports[:0]
    if "port" in query:
        ports = [_port(port, setting) for port in query["port"].split(",")]
    found: dict[str, Any] = {
        "host": _one_or_all(hosts),
        "port": _one_or_all(ports),
        "user": query.get("user") or _decoded(parts["user"]),
        "password": query.get("password") or _decoded(parts["password"]),
        "database": query.get("dbname") or _decoded(parts["database"]),
        "target_session_attrs": None,
    }
    if len(ports) > 1 and len(ports) != len(hosts):
        raise Misconfigured(f"{setting} has {len(hosts)} hosts and {len(ports)} ports")
    found |= {name: query[name] for name in _AS_THEY_ARE & query.keys()}
    arguments = {name: value for name, value in found.items() if value}
    if "connect_timeout" in query:
        arguments |= _timeout(query["connect_timeout"], setting)
    tls = {name: query[name] for name in _TLS & query.keys()}
    for name in _TLS_FILES:
        if name in tls and not Path(tls[name]).is_file():
            raise Misconfigured(f"{setting}: {name} names no file")
    if tls:
        arguments["dsn"] = f"postgresql://?{urlencode(tls)}"
    if server := {name: query[name] for name in _SERVER_SETTINGS & query.keys()}:
        arguments["server_settings"] = server
    return arguments


def merged(own: dict[str, Any], of_the_url: dict[str, Any]) -> dict[str, Any]:
    """Add what the URL says to arguments of our own; where both speak, the URL does."""
    settings = own.get("server_settings", {}) | of_the_url.get("server_settings", {})
    return own | of_the_url | ({"server_settings": settings} if settings else {})


def open_engine(
    url: str,
    *,
    setting: str = "DATABASE_URL",
    arguments: dict[str, Any] | None = None,
    **options: Any,  # noqa: ANN401 - SQLAlchemy's own
) -> AsyncEngine:
    """Make SQLAlchemy's engine for a URL; it connects on first use."""
    return create_async_engine(
        "postgresql+asyncpg://",
        connect_args={
            **merged(arguments or {}, asyncpg_arguments(url, setting=setting)),
            "async_creator_fn": _connect,
        },
        # Values may be inputs, or digests of keys: errors, and so the logs, do not repeat them.
        hide_parameters=True,
        **options,
    )


def _connect(*where: Any, **how: Any) -> Awaitable[asyncpg.Connection[Any]]:  # noqa: ANN401 - asyncpg's own
    """Connect, where that can be waited for: SQLAlchemy makes the call before it finds out."""
    if not in_greenlet():
        raise MissingGreenlet
    return asyncpg.connect(*where, **how)


def _query(text: str, setting: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(text, keep_blank_values=True, strict_parsing=bool(text))
    except ValueError:
        raise Misconfigured(f"{setting}: after the ? there is not name=value&…") from None
    query = {name: value for name, value in pairs if value}
    unknown = sorted({name for name, _ in pairs} - _KNOWN)
    if unknown:
        known = ", ".join(sorted(_KNOWN))
        reason = f"{setting} has parameters that Haulage does not take: {', '.join(unknown)}"
        raise Misconfigured(f"{reason}; it takes {known}")
    for name, choices in _CHOICES.items():
        if name in query and query[name] not in choices:
            raise Misconfigured(f"{setting}: {name} is one of {', '.join(sorted(choices))}")
    return query


def _places(text: str, setting: str) -> tuple[list[str], list[int]]:
    """Take ``host:port,host:port`` apart; there are no ports where none is given."""
    if not text:
        return [], []
    places = [_PLACE.fullmatch(place) for place in text.split(",")]
    found = [place for place in places if place is not None]
    if len(found) < len(places):
        raise Misconfigured(f"{setting}: the host is not host:port (quote what is special in it)")
    hosts = [unquote(place["host"]).strip("[]") for place in found]
    if any(place["port"] for place in found):
        return hosts, [_port(place["port"] or "5432", setting) for place in found]
    return hosts, []


def _port(text: str, setting: str) -> int:
    if not text.isdecimal() or not 1 <= int(text[:6]) <= _HIGHEST_PORT:
        raise Misconfigured(f"{setting}: a port is a number from 1 to {_HIGHEST_PORT}")
    return int(text)


def _timeout(text: str, setting: str) -> dict[str, float]:
    if not text.isdecimal() or int(text[:6]) > _LONGEST_CONNECT_SECONDS:
        most = _LONGEST_CONNECT_SECONDS
        raise Misconfigured(f"{setting}: connect_timeout is whole seconds, {most} at most")
    # psql waits for ever at 0; we never do, and then the setting counts.
    return {"timeout": float(text)} if int(text) else {}


def _decoded(text: str | None) -> str | None:
    return unquote(text) if text else None


def _one_or_all(values: list[Any]) -> Any:  # noqa: ANN401 - as asyncpg takes it
    return values[0] if len(values) == 1 else values


def connect_arguments(
    settings: Settings, *, name: str, lock_seconds: float | None = None
) -> dict[str, Any]:
    """Give asyncpg's connect arguments: limits on every session, and the pooler's one setting."""
    arguments: dict[str, Any] = {
        "timeout": settings.database_connect_timeout_seconds,
        # The server ends what takes too long, and says so. Whoever does not answer even then is
        # not there: without this, a connection that went quiet would be waited for, for ever.
        "command_timeout": settings.statement_timeout_seconds
        + settings.database_connect_timeout_seconds,
    }
    if settings.database_pooler == "transaction":
        # A transaction pooler moves us between sessions: statements are prepared without a name,
        # which lasts until the next one, since nobody could close a named one afterwards.
        # Limits must then be set on the role or in the pooler, which refuses them at connect.
        arguments["prepared_statement_cache_size"] = 0
        arguments["statement_cache_size"] = 0
        arguments["prepared_statement_name_func"] = lambda: ""
        return arguments
    milliseconds = 1_000
    arguments["server_settings"] = {
        "application_name": name[:63],
        "statement_timeout": str(int(settings.statement_timeout_seconds * milliseconds)),
        "idle_in_transaction_session_timeout": str(
            int(settings.idle_in_transaction_timeout_seconds * milliseconds)
        ),
        "jit": "off",
        # A plan kept from a lull, when the outbox was empty, would read all of it in the next rush.
        "plan_cache_mode": "force_custom_plan",
        "timezone": "UTC",
    }
    if lock_seconds is not None:
        arguments["server_settings"]["lock_timeout"] = str(int(lock_seconds * milliseconds))
    return arguments
