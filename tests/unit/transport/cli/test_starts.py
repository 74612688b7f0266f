"""A start: files that settings name, what is checked before, what is waited for, and no secret in any line."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
import structlog.testing

from sessions.limits import Limits
from sessions.model.api_keys import ApiKeyRequest, make_api_key
from sessions.model.errors import BadInput, Unavailable
from sessions.model.types import TenantId, UnixMs
from tests.support.virtual_time import virtual
from transport.cli import logs
from transport.cli.settings import BadSetting, Settings, secrets_in
from transport.cli.start.config_files import BYTES_MAX, ConfigFile, PriceFile, limits_file
from transport.cli.start.preflight import (
    check_data_folder,
    check_files,
    check_journal_complete,
    check_journal_exists,
    check_model,
    check_ports,
    checked_start,
    new_data_folder,
)
from transport.cli.start.security import peer_security
from transport.cli.start.start_stopped import StartStopped
from transport.cli.start.startup import PAUSE_MAX_S, WITHOUT_END, Startup


async def test_without_a_file_there_is_a_value_and_nothing_to_watch() -> None:
    limits = limits_file("")
    assert limits.now() == Limits()
    await limits.run()
    prices = PriceFile("")
    await prices.run()
    assert prices.book.current is None


async def test_a_file_that_changes_is_in_force_and_a_wrong_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "limits.toml"
    path.write_text("[default]\nrequests_per_minute = 3\n")
    limits = limits_file(path)
    path.write_text("[default]\nrequests_per_minute = 40\n[tenants.acme]\nuser.sessions = 7\n")
    assert await limits.watcher.look() and limits.now().of(TenantId("acme")).user.sessions == 7
    path.write_text("[default]\nrequests_per_second = 40 # no such limit\n")
    assert not await limits.watcher.look() and limits.now().of(TenantId("other")).requests_per_minute == 40
    with pytest.raises(BadSetting, match=r"limits = '.*requests_per_second"):
        limits_file(path)


def test_a_file_that_is_missing_or_too_large_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match=r"limits = .*No such file"):
        limits_file(tmp_path / "none.toml")
    path = tmp_path / "large"
    path.write_text("#" * (BYTES_MAX + 1))
    with pytest.raises(BadSetting, match=rf"words = .*{BYTES_MAX + 1} bytes: at most {BYTES_MAX}"):
        ConfigFile("words", path, str.upper, "")


PORTS = ("port", "grpc_port", "metrics_port")


def test_a_taken_port_is_refused_by_its_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for name in (*PORTS, "peer_port"):
            with pytest.raises(BadSetting, match=rf"{name} = {port}: .*taken.*--{name.replace('_', '-')}"):
                check_ports(Settings(**{name: port}), (name,))
    check_ports(Settings(port=port), PORTS)


def test_a_model_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    with pytest.raises(BadSetting, match=r"model\.gguf': this file does not exist\. .* --model"):
        check_model(Settings(model=str(path)))
    check_model(Settings(model=str(path), engine="sim"))
    path.touch()
    check_model(Settings(model=str(path)))
    with pytest.raises(BadSetting, match="is a folder"):
        check_model(Settings(model=str(tmp_path)))
    with pytest.raises(BadSetting, match="does not exist"):
        check_model(Settings(model=str(tmp_path / "without-ending")))


@pytest.mark.parametrize(
    "content", [b"nonsense = [", b"\xff\xfen\x00", b"a = " + b"[" * 10_000], ids=["toml", "utf-16", "deep"]
)
@pytest.mark.parametrize("name", ["limits", "retention", "keys", "issuers"])
def test_a_file_that_is_wrong_is_refused_before_anything_is_made(name: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_bytes(content)
    settings = Settings(**{name: str(path)})  # type: ignore[arg-type]
    with pytest.raises((BadSetting, BadInput), match=name), new_data_folder(Settings(data=str(tmp_path / "data"))):
        check_files(settings)
    assert list(tmp_path.iterdir()) == [path]
    check_files(Settings())


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"origins": ("chat.example",)}, "origins: 'chat.example' is no origin, such as https://chat.example"),
        ({"origins": ("https://chat.example/app",)}, "origins: 'https://chat.example/app' is no origin"),
        ({"push_contact": "mailto:me@example.com"}, "push_contact: push_key is not set"),
        ({"push_key": "none.pem", "push_contact": "mailto:me@example.com"}, "push_key: 'none.pem'"),
    ],
)
def test_a_setting_that_is_wrong_is_refused_before_anything_is_made(
    settings: dict[str, Any], why: str, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=why), new_data_folder(Settings(data=str(tmp_path / "data"))):
        check_files(Settings(**settings))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "origin", ["*", "null", "HTTPS://Chat.example:8443/", "http://[::1]:3000", "chrome-extension://abc"]
)
def test_what_browsers_send_as_an_origin_can_be_listed(origin: str) -> None:
    check_files(Settings(origins=(origin,)))


def test_a_folder_without_a_journal_is_not_answered_for(tmp_path: Path) -> None:
    settings = Settings(data=str(tmp_path))
    with pytest.raises(BadSetting, match="there is no journal in this folder"):
        check_journal_exists(settings)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "journal.db").touch()
    check_journal_exists(settings)
    check_journal_exists(Settings(data=str(tmp_path / "none"), journal="memory"))


def test_a_start_that_fails_leaves_no_folder_but_what_there_was(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "data"

    def fail(*files: str) -> None:
        with pytest.raises(BadSetting, match="wrong"), new_data_folder(Settings(data=str(folder))):
            for name in files:
                (folder / name).touch()
            raise BadSetting("wrong")

    fail("master.key")
    assert list(tmp_path.iterdir()) == []
    fail("master.key", "journal.db")  # there may be something in it
    assert (folder / "master.key").exists() and (folder / "journal.db").exists()
    (folder / "journal.db").unlink()
    fail()
    assert (folder / "master.key").exists()  # of an earlier start
    with new_data_folder(Settings(data=str(tmp_path / "kept"))):
        pass
    assert (tmp_path / "kept").is_dir()


def test_keys_without_their_journal_are_no_new_beginning(tmp_path: Path) -> None:
    (tmp_path / "keys.db").touch()
    with pytest.raises(BadSetting, match=r"keys\.db is there and journal\.db is not; put the journal back"):
        check_journal_complete(Settings(data=str(tmp_path)))
    with pytest.raises(BadSetting, match="put the journal back"), new_data_folder(Settings(data=str(tmp_path))):
        raise AssertionError("it was started")
    check_journal_complete(Settings(data=str(tmp_path), journal="memory"))
    (tmp_path / "journal.db").touch()
    (tmp_path / "master.key").touch()
    check_journal_complete(Settings(data=str(tmp_path)))


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        (("journal.db", "keys.db"), r"master\.key is missing: .*put it back .*--master-key"),
        (("journal.db", "master.key"), r"keys\.db is missing: .*put it back"),
        (("journal.db",), r"keys\.db is missing: .*put it back"),
    ],
)
def test_a_folder_that_lost_a_file_is_refused_as_it_is(tmp_path: Path, files: tuple[str, ...], sentence: str) -> None:
    for name in files:
        (tmp_path / name).write_text("rows")
    with pytest.raises(BadSetting, match=sentence), checked_start(Settings(data=str(tmp_path)), ()):
        raise AssertionError("it was started")
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(files)


def test_a_master_key_that_is_elsewhere_is_not_missed(tmp_path: Path) -> None:
    for name in ("journal.db", "keys.db"):
        (tmp_path / name).write_text("rows")
    check_journal_complete(Settings(data=str(tmp_path), master_key="elsewhere"))
    check_journal_complete(Settings(data=str(tmp_path), key_service="http://127.0.0.1/transit/k"))


def test_a_data_folder_that_cannot_be_written_to_is_called_that(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for folder in (file, file / "below"):
        with pytest.raises(BadSetting, match=r"the data folder cannot be written to .*--data"):
            check_data_folder(Settings(data=str(folder)))


def test_a_data_folder_of_a_second_account_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    folder = Path("/proc/self") if os.geteuid() == 0 else tmp_path  # root may write everywhere else
    with pytest.raises(BadSetting, match=r"the data folder cannot be written to \("):
        check_data_folder(Settings(data=str(folder)))


def test_a_file_that_is_not_there_is_named_with_its_setting() -> None:
    with pytest.raises(BadSetting, match=r"peer_key = 'no-such\.pem': .*No such file"):
        peer_security(Settings(peer_key="no-such.pem"))


AWAY = Unavailable("directory_unavailable", "The session directory does not answer.")


class Dependency:
    """Away for the first attempts."""

    def __init__(self, failures: int, error: Exception = AWAY) -> None:
        self.left = failures
        self.error = error
        self.reasons: list[str | None] = []

    async def open(self, startup: Startup) -> str:
        self.reasons.append(startup.readiness())
        if self.left:
            self.left -= 1
            raise self.error
        return "open"


@virtual
async def test_it_waits_with_growing_pauses_and_says_so() -> None:
    startup, directory = Startup(asyncio.Event()), Dependency(8)
    with structlog.testing.capture_logs() as logged:
        assert await startup.reach("directory", lambda: directory.open(startup)) == "open"
    assert directory.reasons == ["starting"] + 8 * ["waiting for the directory"]
    awaited = [each for each in logged if each["event"] == "dependency_awaited"]
    assert [each["next_try_s"] for each in awaited] == [0.5, 1, 2, 4, 8, PAUSE_MAX_S, PAUSE_MAX_S, PAUSE_MAX_S]
    assert {(each["name"], each["error"]) for each in awaited} == {("directory", AWAY.public_message)}
    assert [each["waited_s"] for each in awaited] == [0, 0.5, 1.5, 3.5, 7.5, 15.5, 30.5, 45.5]
    assert {each["hint"] for each in awaited} == {WITHOUT_END}
    (reached,) = (each for each in logged if each["event"] == "dependency_reached")
    assert reached["after_s"] == pytest.approx(60.5)
    assert startup.readiness() == "starting"


@virtual
async def test_what_is_there_at_once_is_not_mentioned() -> None:
    startup, journal = Startup(asyncio.Event()), Dependency(0)
    with structlog.testing.capture_logs() as logged:
        await startup.reach("journal", lambda: journal.open(startup))
    assert logged == []


@pytest.mark.parametrize(
    "error",
    [BadInput("directory_unsuitable", "refuses our password"), Unavailable("journal_newer", "newer", retryable=False)],
)
@virtual
async def test_what_does_not_mend_by_itself_ends_the_start(error: Exception) -> None:
    startup, directory = Startup(asyncio.Event()), Dependency(2, error)
    with pytest.raises(type(error)):
        await startup.reach("directory", lambda: directory.open(startup))
    assert len(directory.reasons) == 1


@virtual
async def test_a_stop_signal_ends_the_waiting_at_once() -> None:
    stop = asyncio.Event()
    startup, directory = Startup(stop), Dependency(100)
    loop = asyncio.get_running_loop()
    loop.call_later(20, stop.set)
    begun = loop.time()
    with pytest.raises(StartStopped):
        await startup.reach("directory", lambda: directory.open(startup))
    assert loop.time() - begun == pytest.approx(20)


@virtual
async def test_a_process_that_is_up_says_itself_whether_traffic_is_welcome() -> None:
    startup, reasons = Startup(asyncio.Event()), ["no replica is reachable"]
    startup.finish(lambda: reasons[-1] if reasons else None)
    assert startup.readiness() == "no replica is reachable"
    reasons.clear()
    assert startup.readiness() is None


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
