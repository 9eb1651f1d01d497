"""What the logs of a process never show, and how long a line and its redaction may take."""

import asyncio
import json
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import structlog

from consumer.processors.verdicts import outcome_of
from infra.telemetry.redaction import redact_event, render_json
from schema.outcome import MESSAGE_LIMIT, clean, fingerprint
from schema.redaction import CUT, HIDDEN, TEXT_LIMIT, is_secret, redact

CHECKOUT = Path(__file__).resolve().parent.parent.parent
KEY = "hlg_" + "k3Y" * 14 + "k"
PASSWORD = "pa55w0rd-of-the-database"
DSN = f"postgresql://haulage:{PASSWORD}@db.example:5432/haulage"
FAILING = """
import asyncio, logging, sys
import structlog
from infra.process import run

key, dsn = sys.argv[1:]
log = structlog.get_logger("failing")

class Holder:
    def __repr__(self):
        return f"Holder({key}, {dsn})"

def connect(authorization, url):
    a_local, nested = authorization, {"url": [url]}
    raise ConnectionError(f"no connection to {url} with {authorization}")

async def serve(settings, worker, stop):
    log.info("fields", nested={"deep": [{"url": dsn}, (key,)], key: 1}, holder=Holder(), size=3,
             headers={"authorization": "Basic " + key[4:]}, password=dsn[21:45], raw=dsn.encode(),
             query="host=x&password=" + dsn[21:45])
    logging.getLogger("library").warning("called %s for %s", dsn, key, extra={"more": [dsn]})
    log.warning("long", text="y" * 8180 + " " + dsn, many=[{"n": "z" * 900}] * 5000)
    try:
        try:
            connect(f"Bearer {key}", dsn)
        except ConnectionError as error:
            error.add_note(f"tried {dsn}")
            raise RuntimeError("w" * 100000 + key) from error
    except RuntimeError as error:
        raise ExceptionGroup("several", [error, ValueError(dsn)]) from None

sys.exit(run("failing", serve))
"""


@pytest.mark.parametrize("format_", ["json", "console"])
def test_no_line_of_a_failing_process_shows_a_secret_or_is_longer_than_it_may_be(
    format_: str,
) -> None:
    environment = {"DATABASE_URL": DSN, "HAULAGE_LOG_FORMAT": format_, "CONSUMER_MODE": "outbox"}
    ended = subprocess.run(
        [sys.executable, "-c", FAILING, KEY, DSN],
        env=environment, cwd=CHECKOUT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == 1, ended.stderr[-2_000:]
    written = ended.stdout + ended.stderr
    for secret in (KEY, KEY[4:], PASSWORD, KEY[4:20]):
        assert secret not in written, written[max(0, written.index(secret) - 300) :][:600]
    assert "connect" in written, "the frames are there, without their locals"
    assert "a_local" not in written.replace("a_local, nested = authorization", "")
    assert max(map(len, written.splitlines())) < 48 * 1024
    if format_ == "json":
        lines = [json.loads(line) for line in written.splitlines()]
        assert {line["process"] for line in lines} == {"failing"}
        fields = next(line for line in lines if line["event"] == "fields")
        assert fields["size"] == 3
        assert fields["nested"]["deep"][0] == {"url": "postgresql://***@db.example:5432/haulage"}
        assert "exception" in next(line for line in lines if line["event"] == "process.failed")


TELLING = """
import sys
from http import HTTPStatus
import structlog
from infra.process import run

async def serve(settings, worker, stop):
    log = structlog.get_logger("telling")
    log.info("request", status=HTTPStatus.OK, route=None, replayed=False)

sys.exit(run("telling", serve))
"""


@pytest.mark.parametrize("format_", ["json", "console"])
def test_a_status_is_a_number_and_a_terminal_shows_no_fields_without_a_value(format_: str) -> None:
    environment = {"DATABASE_URL": DSN, "HAULAGE_LOG_FORMAT": format_, "CONSUMER_MODE": "outbox"}
    ended = subprocess.run(
        [sys.executable, "-c", TELLING],
        env=environment, cwd=CHECKOUT, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    (line,) = [line for line in ended.stderr.splitlines() if "replayed" in line]
    if format_ == "json":
        said = json.loads(line)
        assert (said["status"], said["route"], said["replayed"]) == (200, None, False)
    else:
        assert {"status=200", "replayed=False"} <= set(line.split())
        assert "route" not in line


STEERING = """
import logging, sys
import structlog
from infra.process import run

FORGED = "\\x1b[2Jgone\\x9b2J\\r\\n2026-01-01T00:00:00Z [info     ] process.stopped forged=yes"

async def serve(settings, worker, stop):
    log = structlog.get_logger("steering")
    log.info("fields", error=FORGED, short="a\\x9bb", many=[FORGED], **{"na\\x9bme": 1})
    logging.getLogger("library").warning("said %s", FORGED, stack_info=True)
    raise RuntimeError(FORGED)

sys.exit(run("steering", serve))
"""


@pytest.mark.parametrize("format_", ["json", "console"])
def test_no_text_steers_a_terminal_or_forges_a_line(format_: str) -> None:
    environment = {"DATABASE_URL": DSN, "HAULAGE_LOG_FORMAT": format_, "CONSUMER_MODE": "outbox"}
    ended = subprocess.run(
        [sys.executable, "-c", STEERING],
        env=environment, cwd=CHECKOUT, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    written = ended.stderr.decode()
    assert ended.returncode == 1
    assert all(character.isprintable() for character in written.replace("\n", ""))
    assert written.count("forged=yes") >= 4
    assert not [line for line in written.splitlines() if line.startswith("2026-01-01")]


def test_the_cause_of_an_error_inside_nested_task_groups_is_shown_with_its_frames() -> None:
    async def fail() -> None:
        try:
            int("refused")
        except ValueError as error:
            raise RuntimeError("the end of it") from error

    async def nested(depth: int) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(nested(depth - 1) if depth else fail())

    render = structlog.processors.ExceptionRenderer(
        structlog.tracebacks.ExceptionDictTransformer(show_locals=False, use_rich=False)
    )
    with pytest.raises(ExceptionGroup) as raised:
        asyncio.run(nested(3))
    event = render(None, "", {"event": "process.failed", "exc_info": raised.value})
    shown = json.dumps(redact_event(None, "", event))
    for part in ("the end of it", "refused", '"fail"'):
        assert part in shown
    assert CUT not in shown


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        (DSN, "postgresql://***@db.example:5432/haulage"),
        ("https://token@host/x", "https://***@host/x"),
        ("amqp://u:p@ss/w@host", "amqp://***@host"),
        ("https://user:p@ss/w@host/x y", "https://***@host/x y"),
        ("see http://localhost:4566/queue and https://host/a", None),
        ("at http://localhost:4566", None),
        ("Authorization: Bearer abc.def", "Authorization: Bearer ***"),
        (f"key {KEY}, again {KEY}", "key hlg_***, again hlg_***"),
        (
            "postgresql:///n?sslpassword=x&password=y&host=z",
            "postgresql:///n?sslpassword=***&password=***&host=z",
        ),
        # Behind a letter of another script, and behind what may stand in a name.
        ("连接postgres://app:pa55@db/x", "连接postgres://***@db/x"),
        ("_postgres://app:pa55@db/x", "_postgres://***@db/x"),
        ("登录Bearer abc.def", "登录Bearer ***"),
        # As long as the token that a cloud hands out for a password.
        (f"postgresql://app:{'p' * 3_000}@db:5432/x", "postgresql://***@db:5432/x"),
        ("postgres://app:pa55://word@db/x", "postgres://***@db/x"),
        ("password = 'pa55 word' host=z", "password = '***' host=z"),
        ('{"password": "pa55 word"}', '{"password": "***"}'),
        ('(password="it\'s pa55")', '(password="***")'),
        (repr({"password": "it's pa55"}), "{'password': \"***\"}"),
        ('{"password": "it\\"s pa55", "a": 1}', '{"password": "***", "a": 1}'),
        ("password: pa55", "password: ***"),
        ("/v1/metrics?api_key=k1&token=t1&x=2", "/v1/metrics?api_key=***&token=***&x=2"),
        ("http://host/p?key=k1&sig=s1&code=c1", "http://host/p?key=***&sig=***&code=***"),
        ("aws_secret_access_key = s1, passwd=p1", "aws_secret_access_key = *** passwd=***"),
        ("AccountKey=k1 x-api-key: k2", "AccountKey=*** x-api-key: ***"),
        ("Authorization: Basic dTpw", "Authorization: Basic ***"),
        ("{'authorization': 'Basic dTpw', 'a': 1}", "{'authorization': '***', 'a': 1}"),
        (r'{"said": "{\"token\": \"t 1\"}', r'{"said": "{\"token\": \"***"'),
        ("\u0130 Set-Cookie: s=1; Path=/", "\u0130 Set-Cookie: *** Path=/"),
        # Values that are no plain words, as Python and others write them.
        (repr({b"password": b"hunter2", b"a": 1}), "{b'password': b'***', b'a': 1}"),
        (repr({b"authorization": b"Basic dTpw"}), "{b'authorization': b'***'}"),
        ("password=rb'x' or password: U\"y\"", "password=rb'***' or password: U\"***\""),
        ('{"api_keys": ["k1","k2"], "a": 1}', '{"api_keys": ***, "a": 1}'),
        ('{"api_keys": ["k]1", ["k2"]], "a": 1}', '{"api_keys": ***, "a": 1}'),
        (r'"{\"secrets\": [\"k 1\", \"k 2\"], \"a\": 1}"', r'"{\"secrets\": ***, \"a\": 1}"'),
        ("secret={'a': {'b': 'c d'}} x=1", "secret=*** x=1"),
        ("secrets: ('a', 'b') x", "secrets: *** x"),
        ("secrets: ['a', 'b", "secrets: ***"),
        ("connect(token=Token('abc'), x=1)", "connect(token=***, x=1)"),
        ("token=a.Token[str]('a b') x=1", "token=*** x=1"),
        ("token=<Token 'a b'> x=1", "token=*** x=1"),
        ("password=(ab)cd x=1", "password=*** x=1"),
        ("password=ab'cd x=1", "password=*** x=1"),
        ("password='ab'cd' x=1", "password='***' x=1"),
        ("password='ab''c d' x=1", "password='***' x=1"),
        ("password='a\\\nb' x=1", "password='***' x=1"),
        ("given['password'] = 'a b'", "given['password'] = '***'"),
        (
            "assert password == 'a b', password != 'c d'",
            "assert password == '***', password != '***'",
        ),
        ('"password" => "a b"', '"password" => "***"'),
        ("authorization_header: Basic dTpw", "authorization_header: Basic ***"),
        ("max_tokens=100 config=5 key: J1 code=3", None),
        ("max_tokens=[1, 2] config=(5) keys: {'a': b'c'}", None),
        ("http://localhost:4566/path?from=a", None),
    ],
)
def test_credentials_are_taken_out_of_a_text(text: str, redacted: str | None) -> None:
    assert redact(text) == (text if redacted is None else redacted)


@pytest.mark.parametrize(
    "name",
    [
        "authorization", "authorization_header", "authorizationHeader", "Proxy-Authorization",
        "client.secret.value", "password (old)", "passwd[0]", "db_pwd", "the cookies of it",
        "next_token", "x-amz-signature", "sig",
    ],
)  # fmt: skip
def test_a_field_with_the_name_of_a_secret_in_it_is_hidden(name: str) -> None:
    assert is_secret(name)
    fields = {"event": "x", name: ["hunter2"], "headers": {name.encode(): b"hunter2"}}
    written = redact_event(None, "", fields)
    assert written[name] == HIDDEN
    assert list(written["headers"].values()) == [HIDDEN]


@pytest.mark.parametrize(
    "name",
    ["max_tokens", "token_bucket", "signatures", "design", "config", "key", "code", "author"],
)
def test_a_field_of_another_name_is_shown(name: str) -> None:
    assert not is_secret(name)
    assert redact_event(None, "", {"event": "x", name: 5})[name] == 5


@pytest.mark.parametrize(
    "event",
    [
        {"event": "plain", "job": "J1", "inputs": 5, "ratio": 0.5, "owner": None, "ok": True},
        {"event": "deep", "about": {"a": [1, "b", {"c": (2, 3)}]}, "text": "ä\u2028"},
        {"event": "names", "password": "x", "api_key": "y", "next_token": "z", "Secret": 1},
        {"event": "values", "url": DSN, "header": "Bearer abc", "key": KEY},
        {"event": "odd", "number": math.nan, "set": {1}, "bytes": b"x", "huge": 2**70},
        {"event": "long", "text": "x" * 3 * TEXT_LIMIT, "list": ["y" * 2_000] * 40},
        {"event": "nested", "of": {"it": "z" * 2_000}},
    ],
    ids=lambda event: event["event"],
)
def test_a_line_is_the_same_whether_or_not_each_field_of_it_is_looked_at(
    event: dict[str, Any],
) -> None:
    written = json.loads(render_json(None, "", dict(event)))
    assert written == json.loads(json.dumps(redact_event(None, "", dict(event))))


def test_a_number_that_json_does_not_have_becomes_a_text() -> None:
    event = {"event": "x", "price": math.nan, "listed": [math.inf, 1.5]}
    written = redact_event(None, "", event)
    assert (written["price"], written["listed"]) == ("nan", ["inf", 1.5])


def test_a_secret_that_the_cut_runs_through_is_not_half_shown() -> None:
    for before in range(TEXT_LIMIT - len(DSN) - 5, TEXT_LIMIT):
        assert "pa55" not in redact("x" * (before - 1) + " " + DSN)
    for before in range(TEXT_LIMIT - len(KEY) - 5, TEXT_LIMIT):
        assert KEY[4:8] not in redact("x" * (before - 1) + " " + KEY)


@pytest.mark.parametrize(
    "unit",
    [
        "x",
        "a://",
        "://",
        "a://u:p@",
        "password='",
        "a1+.-",
        "ab://c:",
        "bearer ",
        " ",
        "'",
        "\"'",
        "0x",
        "hlg_",
        "@:/",
        "a://u:@",
        "password",
        "sig=",
        "api_key: '",
        "authorization: a ",
        "password=[",
        "password=(')",
        "token=a(b)",
        "secret: b'",
    ],
)
def test_a_text_of_any_shape_and_size_is_judged_in_no_time(unit: str) -> None:
    text = unit * (4_000_000 // len(unit))
    began = time.process_time()
    for _ in range(3):
        assert len(redact(text)) < 2 * TEXT_LIMIT
        outcome_of(RuntimeError(text))
        assert len(clean(text)) <= MESSAGE_LIMIT
        fingerprint("kind", "Error", text)
    assert time.process_time() - began < 1.5


@pytest.mark.parametrize(
    "unit",
    [
        "[",
        "]",
        "()",
        "'",
        "\"'",
        "\\",
        "\\'",
        "a(",
        "token=(",
        "token=()",
        "token=()a",
        "token=['],",
        "b'",
    ],
)
def test_the_value_of_a_secret_costs_time_in_proportion_to_its_length(unit: str) -> None:
    def seconds(length: int) -> float:
        text = ("password=[" + unit * length)[:length]
        spent = []
        for _ in range(7):
            began = time.process_time()
            redact(text)
            spent.append(time.process_time() - began)
        return min(spent)

    # What grows with the square of the length takes 64 times as long.
    assert seconds(TEXT_LIMIT) < 32 * seconds(TEXT_LIMIT // 8)
