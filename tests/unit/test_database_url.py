"""A database URL is taken apart once, and what is not understood in it is refused by name."""

from pathlib import Path
from typing import Any

import pytest

from infra.database_url import asyncpg_arguments, merged
from schema.errors import Misconfigured


@pytest.mark.parametrize(
    ("url", "arguments"),
    [
        ("postgresql://h/n", {"host": "h", "database": "n"}),
        ("postgres://u:p%40ss@h:6000/n", {
            "host": "h", "port": 6000, "user": "u", "password": "p@ss", "database": "n",
        }),
        ("postgresql+asyncpg://u@h", {"host": "h", "user": "u"}),
        ("postgresql://u:a/b#c@h/n", {
            "host": "h", "user": "u", "password": "a/b#c", "database": "n",
        }),
        ("postgresql://u@/n?host=/run/pg&port=5433", {
            "host": "/run/pg", "port": 5433, "user": "u", "database": "n",
        }),
        ("postgresql://%2Frun%2Fpg/n", {"host": "/run/pg", "database": "n"}),
        ("postgresql://[::1]:5/n", {"host": "::1", "port": 5, "database": "n"}),
        ("postgresql://a:1,b/n?target_session_attrs=read-write", {
            "host": ["a", "b"], "port": [1, 5432], "database": "n",
            "target_session_attrs": "read-write",
        }),
        ("postgresql:///n?user=u&password=p&dbname=m", {
            "user": "u", "password": "p", "database": "m",
        }),
        ("postgresql://h/n?sslmode=require&connect_timeout=7", {
            "host": "h", "database": "n", "dsn": "postgresql://?sslmode=require", "timeout": 7.0,
        }),
        ("postgresql://h/n?application_name=a%20b&options=-c%20search_path%3Dx", {
            "host": "h", "database": "n",
            "server_settings": {"application_name": "a b", "options": "-c search_path=x"},
        }),
    ],
)  # fmt: skip
def test_the_arguments_of(url: str, arguments: dict[str, Any]) -> None:
    assert asyncpg_arguments(url) == arguments


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("mysql://h/n", "NAME is not a URL"),
        ("h/n", "NAME is not a URL"),
        ("postgresql://h:x/n", "host:port"),
        ("postgresql://h:70000/n", "a port is"),
        ("postgresql://h/n?sslmode=on", "sslmode is one of"),
        ("postgresql://h/n?target_session_attrs=x", "target_session_attrs is one of"),
        ("postgresql://h/n?sslmode=verify-full&sslrootcert=/no/such", "sslrootcert names no file"),
        ("postgresql://h/n?connect_timeout=soon", "connect_timeout is"),
        ("postgresql://h/n?connect_timeout=1e9", "connect_timeout is"),
        ("postgresql://h/n?sslmod=require&keepalives=1", "keepalives, sslmod;"),
        ("postgresql://h/n?sslmode", "name=value"),
        ("postgresql://a,b,c/n?port=1,2", "3 hosts and 2 ports"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(url: str, named: str) -> None:
    with pytest.raises(Misconfigured, match=named) as raised:
        asyncpg_arguments(url.replace("//", "//u:geheim@") if "@" in url else url, setting="NAME")
    assert str(raised.value).startswith("NAME")


def test_the_url_counts_more_than_our_own_arguments(tmp_path: Path) -> None:
    certificate = tmp_path / "root.crt"
    certificate.touch()
    url = f"postgresql://h?application_name=a&connect_timeout=2&sslrootcert={certificate}"
    own = {"timeout": 9, "server_settings": {"application_name": "b", "jit": "off"}}
    found = merged(own, asyncpg_arguments(url))
    assert found["timeout"] == 2
    assert found["server_settings"] == {"application_name": "a", "jit": "off"}
