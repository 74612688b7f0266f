"""No secret is in any line: planted everywhere that a line has room, in every way that one is written."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator

import pytest
import structlog

from sessions.model.api_keys import ApiKeyRequest, make_api_key
from sessions.model.types import UnixMs
from transport.cli import logs
from transport.cli.settings import Settings, secrets_in

_, KEY = make_api_key(ApiKeyRequest(tenant="acme"), bytes(range(7, 47)), now=UnixMs(1))
SECRET = KEY.rpartition("-")[2]
MINE = "a-key-of-another-make-4711"
JWT = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhbmEiLCJleHAiOjE3NTB9.c2lnbmF0dXJlLW9mLXRoZS10b2tlbg"
PEM = "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEIIxplanted\n-----END EC PRIVATE KEY-----"
PLANTED = {
    "an API key": (KEY, SECRET),
    "another service's key": ("sk-proj-abcdefghijklmnop1234", "abcdefghijklmnop1234"),
    "a token": (JWT, JWT.split(".")[2]),
    "a header": (f"Authorization: Bearer {KEY}", SECRET),
    "a basic header": ("Basic dXNlcjpwbGFudGVkLXNlY3JldA==", "dXNlcjpwbGFudGVk"),
    "a subprotocol": (f"sessile.bearer.{base64.urlsafe_b64encode(KEY.encode()).decode()}", "c2stc2Vzc2lsZS"),
    "a ticket": ("GET /v1/ws?ticket=tkt_Zk3plantedplanted HTTP/1.1", "Zk3planted"),
    "a URL": ("postgresql://sessile:hunter2hunter@db.internal/x", "hunter2hunter"),
    "a private key": (PEM, "MHcCAQEEIIxplanted"),
    "this process's own key": (f"it is {MINE}, they said", MINE),
    "a setting's value": ("the peer said planted-peer-token-17!", "planted-peer-token"),
}


@pytest.fixture(params=["json", "console"])
def stream(request: pytest.FixtureRequest) -> Iterator[io.StringIO]:
    before = structlog.get_config()
    stream = io.StringIO()
    settings = Settings(peer_token="planted-peer-token-17!", journal="postgresql://u:pa%3Aword@h/db", api_key=MINE)
    logs.configure("debug", request.param, secrets=secrets_in(settings), stream=stream)
    yield stream
    structlog.configure(**before)


@pytest.mark.parametrize("name", PLANTED)
def test_a_secret_is_in_no_part_of_a_line(stream: io.StringIO, name: str) -> None:
    text, secret = PLANTED[name]
    log = structlog.get_logger()
    log.warning(f"somebody said {text} to us", note=text, nested={"list": [text, {"deep": (text,)}], text: 1})
    log.info("bytes", body=text.encode(), thing=ValueError(text))
    with structlog.contextvars.bound_contextvars(about=text):
        try:
            raise RuntimeError(f"it failed with {text}")
        except RuntimeError:
            log.exception("failed")
    written = stream.getvalue()
    assert written.count(logs.REDACTED) >= 6
    assert secret not in written and secret not in written.replace("\\n", "").replace("\n", "")


def test_what_is_named_like_a_secret_is_not_written_whatever_it_is(stream: io.StringIO) -> None:
    names = ("authorization", "password", "client_secret", "api_key", "token", "peer_token", "Cookie", "credential")
    structlog.get_logger().info("x", **dict.fromkeys(names, "correct horse"), nested={"password": "correct horse"})
    assert "correct horse" not in stream.getvalue()
    assert stream.getvalue().count(logs.REDACTED) == len(names) + 1


def test_what_is_no_secret_stays(stream: io.StringIO) -> None:
    key_id = KEY.split("-")[2]
    structlog.get_logger().info(
        "key_created", key=key_id, session="ses_abc", num_tokens=5, url="http://127.0.0.1:8080/", prefix=KEY
    )
    line = stream.getvalue()
    assert f"sk-sessile-{key_id}-{logs.REDACTED}" in line and logs.REDACTED in line and "pa%3Aword" not in line
    if line.startswith("{"):
        told = json.loads(line)
        assert (told["key"], told["session"], told["num_tokens"], told["url"]) == (
            key_id,
            "ses_abc",
            5,
            "http://127.0.0.1:8080/",
        )


def test_passwords_of_addresses_and_settings_are_known() -> None:
    settings = Settings(journal="postgresql://u:pa%3Aword@h/db", directory="redis://:redispass@h", peer_token="p" * 16)
    assert secrets_in(settings) == ["p" * 16, "pa:word", "redispass"]
    settings = Settings(usage_stream="redis://:streampass@h/0", otlp="https://u:otlppass@h:4318")
    assert secrets_in(settings) == ["streampass", "otlppass"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("style", "terminal", "as_json"),
    [("auto", True, False), ("auto", False, True), ("json", True, True), ("console", False, False)],
)
def test_lines_are_for_people_on_a_terminal_and_json_elsewhere(style: str, terminal: bool, as_json: bool) -> None:
    before = structlog.get_config()
    stream = Terminal() if terminal else io.StringIO()
    try:
        logs.configure("info", style, stream=stream)
        structlog.get_logger().info("session_activated", session="ses_1")
        structlog.get_logger().debug("not_this_one")
    finally:
        structlog.configure(**before)
    (line,) = stream.getvalue().splitlines()
    assert line.startswith("{") == as_json and "session_activated" in line and "ses_1" in line
    assert ("\x1b[" in line) == (terminal and not as_json), "colours only where somebody looks"


def test_an_error_is_a_traceback_without_secrets_on_a_terminal(recwarn: pytest.WarningsRecorder) -> None:
    before = structlog.get_config()
    stream = Terminal()
    try:
        logs.configure("info", "auto", secrets=[MINE], stream=stream)
        try:
            raise RuntimeError(f"it failed with {MINE}")
        except RuntimeError:
            structlog.get_logger().exception("handoff_failed")
    finally:
        structlog.configure(**before)
    assert "Traceback" in stream.getvalue() and MINE not in stream.getvalue() and not recwarn.list
