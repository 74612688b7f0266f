"""Commands of the command line: what they accept, send and print."""

from __future__ import annotations

import io
import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.peer.frames import ResidentSession
from persistence.memory.store import MemoryStore
from sessions.model.audit import INSTALLATION, Audited
from sessions.model.errors import BadInput, SessileError, Unavailable
from sessions.model.types import ReplicaId, SessionId, SessionKey, TenantId, UnixMs
from sessions.ports import Member, View
from sessions.store import Store
from tests.support.stores.encryption import Encryption
from tests.support.stores.journals import NOW
from transport.cli import audit, encryption, tokens, users
from transport.cli.api_client import base_of, call
from transport.cli.audit import ListRows, VerifyChain, format_audit, is_broken
from transport.cli.cluster import ListSessions, format_members, format_sessions, sessions_as_json
from transport.cli.doctor import format_findings, has_findings
from transport.cli.encryption import (
    DestroyKeys,
    EncryptionCommand,
    RewrapKeys,
    RotateKeys,
    ShowEncryption,
    StopSweep,
    format_encryption,
)
from transport.cli.keys import CreateKey, seconds_of
from transport.cli.models import ModelRow, ProgressLine, format_models
from transport.cli.settings import BadSetting
from transport.cli.tokens import ListRevocations, RevokeTokens, format_revocations
from transport.cli.users import EraseUser, ExportUser
from transport.ops.diagnosis import Diagnosis
from transport.ops.operator_requests import SessionPage, SessionQuery


def test_a_key_goes_over_https_or_to_this_machine() -> None:
    assert base_of("http://127.0.0.1:8080/", "sk-x") == "http://127.0.0.1:8080"
    assert base_of("https://chat.example", "sk-x") == "https://chat.example"
    assert base_of("http://chat.example", "") == "http://chat.example"
    with pytest.raises(BadSetting, match="https only"):
        base_of("http://chat.example", "sk-x")
    for wrong in ("chat.example", "ftp://chat.example", "http://"):
        with pytest.raises(BadSetting, match="http://HOST:PORT"):
            base_of(wrong, "")


def test_an_address_is_taken_as_people_write_it() -> None:
    for written in ("127.0.0.1:9000", "ws://127.0.0.1:9000", "http://127.0.0.1:9000/", "ws://127.0.0.1:9000/v1/ws"):
        assert base_of(written, "sk-x") == "http://127.0.0.1:9000"
    assert base_of("wss://chat.example/behind/v1/ws", "sk-x") == "https://chat.example/behind"
    assert base_of("localhost:9000/", "") == "http://localhost:9000" and base_of("[::1]:9", "") == "http://[::1]:9"
    for wrong in ("127.0.0.1:x", "http://127.0.0.1:99999", "http://127.0.0.1:0", "mailto:a@b", "user:8080/path"):
        with pytest.raises(BadSetting, match="HOST:PORT"):
            base_of(wrong, "")


def test_a_server_that_is_not_there_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(Unavailable, match=f"http://127.0.0.1:{port}/v1/keys does not answer"):
        call("GET", f"http://127.0.0.1:{port}/v1/keys", "")


def test_without_a_key_a_server_that_takes_none_says_where_one_goes() -> None:
    class Closed(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(401)
            self.end_headers()
            self.wfile.write(b'{"error": {"code": "unauthorized", "message": "No such key."}}')

    with HTTPServer(("127.0.0.1", 0), Closed) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/v1/keys"
        with pytest.raises(BadSetting, match=r"put one in SESSILE_API_KEY, .*--api-key-file"):
            call("GET", url, "")
        with pytest.raises(SessileError, match="No such key"):
            call("GET", url, "sk-sessile-a-b")
        server.shutdown()


CHAIN: dict[str, Any] = {
    "tenant": "acme",
    "intact": True,
    "rows": 3,
    "trimmed": 0,
    "trimmed_until": 0,
    "unchecked": 0,
    "weak": 0,
    "anchor": "3:ab",
}
ROW: dict[str, Any] = {
    "object": "audit.row",
    "tenant": "acme",
    "seq": 7,
    "at": 1_000,
    "action": "key.created",
    "by": {"role": "operator", "key": "abc"},
    "key": "def",
    "detail": {"n": 1},
    "mac": "00",
}


def test_a_chain_is_a_sentence_and_its_anchor() -> None:
    verify = VerifyChain()
    assert format_audit(verify, [CHAIN]) == "acme: 3 rows, all as they were written; anchor 3:ab"
    trimmed = {**CHAIN, "tenant": "", "trimmed": 2, "trimmed_until": 1_000, "unchecked": 1, "weak": 1, "anchor": ""}
    assert format_audit(verify, [trimmed]) == (
        "(installation): 3 rows, all as they were written; 1 of them without the key file; 2 before them were trimmed,"
        " up to 1970-01-01T00:00:01+00:00; 1 of the anchors given are of trimmed rows and prove nothing; anchor -"
    )
    broken = {**CHAIN, "intact": False, "first_broken": 2, "why": "was changed"}
    assert format_audit(verify, [CHAIN, broken]).splitlines()[1] == "acme: row 2 was changed"
    assert is_broken(verify, [CHAIN, broken]) and not is_broken(verify, [CHAIN])


def test_a_row_is_a_line() -> None:
    line = format_audit(ListRows(tenant="acme"), [ROW])
    assert (
        line == f'       7  1970-01-01T00:00:01.000+00:00  {"key.created":<24} operator abc  key=def detail={{"n":1}}'
    )
    assert format_audit(ListRows(tenant="acme", as_json=True), [ROW]).startswith('{"object":"audit.row"')


def test_options_that_make_no_sense_are_refused() -> None:
    for limit, last, after in ((0, 0, 0), (10_001, 0, 0), (1, -1, 0), (1, 0, -1)):
        with pytest.raises(BadSetting, match="limit, last"):
            ListRows(tenant="acme", limit=limit, last=last, after=after)
    with pytest.raises(BadSetting, match="one tenant's chain"):
        VerifyChain(anchor=(f"1:{'0' * 64}",))


def test_an_empty_log_says_so() -> None:
    assert format_audit(VerifyChain(), []) == "No rows: nothing was recorded so far."
    assert format_audit(VerifyChain(), [{**CHAIN, "rows": 0, "anchor": ""}]) == "acme: no rows; anchor -"
    assert format_audit(ListRows(), []) == "No such rows."


async def test_the_log_of_the_only_tenant_needs_no_name() -> None:
    store = MemoryStore()
    await store.open()
    assert await audit.run_on_journal(store.audit, ListRows()) == []
    for tenant in ("", "acme"):
        await store.audit.record(TenantId(tenant), [Audited(action="verdict", at=UnixMs(1), detail={})])
    (row,) = await audit.run_on_journal(store.audit, ListRows())
    assert row["tenant"] == "acme"
    await store.audit.record(TenantId("other"), [Audited(action="verdict", at=UnixMs(1), detail={})])
    with pytest.raises(BadSetting, match=r"^tenant: name whose log with --tenant \(acme, other\)"):
        await audit.run_on_journal(store.audit, ListRows())
    await store.close()


ONE = ResidentSession(
    key=SessionKey(TenantId("acme"), SessionId("one")),
    replica="r1",
    state="idle",
    fence=3,
    epoch="e",
    top=12,
    open=(),
    kv_tier="device",
    kv_tokens=40,
    readers=2,
    idle_s=7.4,
    reason="handed off by r2; choice 1 of 2",
)


def test_sessions_as_a_table_and_as_json() -> None:
    page = SessionPage([ONE], 5, True, {"r3": "refused: nobody listens"})
    assert format_sessions(page).splitlines() == [
        "SESSION   OWNER  FENCE  STATE     KV         OPEN TURN  TOP  READERS  WHY HERE",
        "acme/one  r1     3      idle 7 s  device 40  -          12   2        handed off by r2; choice 1 of 2",
        "r3 does not answer: refused: nobody listens",
        "1 of 5 sessions in memory; parked ones belong to nobody",
        "next page: --after acme/one",
    ]
    read = json.loads(sessions_as_json(page))
    assert read["sessions"][0]["tenant"] == "acme" and read["sessions"][0]["session"] == "one"
    assert (read["total"], read["has_more"], read["silent"]) == (5, True, {"r3": "refused: nobody listens"})
    assert set(read) == {"sessions", "total", "has_more", "silent"}


def test_a_query_is_what_the_options_name() -> None:
    options = ListSessions(replica="r1", state="idle", limit=7, after="a/b", as_json=True)
    assert options.query == SessionQuery(replica="r1", state="idle", limit=7, after="a/b")
    for limit in (0, 1001):
        with pytest.raises(BadSetting, match="limit"):
            ListSessions(limit=limit)


def test_members_are_a_line_each() -> None:
    member = Member(replica=ReplicaId("r1"), incarnation="i", address="127.0.0.1:5", model="m", fingerprint="f")
    draining = Member(
        replica=ReplicaId("r2"), incarnation="i", address="127.0.0.1:6", model="m", fingerprint="f", draining=True
    )
    view = View(version=4, members=(member, draining))
    assert format_members(view).splitlines() == [
        "view 4, 2 replicas",
        "r1  serving  load 0.00  127.0.0.1:5  m",
        "r2  draining  load 0.00  127.0.0.1:6  m",
    ]


OK = Diagnosis("ok", "disk", "has room")
WARNING = Diagnosis("warning", "journal", "has no tables yet", "the first process makes them")
ERROR = Diagnosis("error", "replica \x1b[2J", "does not answer", "look at it")


def test_findings_are_lines_with_what_to_do_below() -> None:
    lines = format_findings([OK, WARNING, ERROR], as_json=False).splitlines()
    assert lines[0] == "ok       disk: has room"
    assert lines[1:3] == ["WARNING  journal: has no tables yet", "         -> the first process makes them"]
    assert lines[-1] == "1 errors, 1 warnings" and "\x1b" not in "".join(lines)


def test_findings_as_json() -> None:
    assert json.loads(format_findings([WARNING], as_json=True)) == [
        {"level": "warning", "part": "journal", "text": WARNING.text, "advice": WARNING.advice}
    ]


def test_the_exit_status_says_whether_there_is_something_to_do() -> None:
    assert not has_findings([OK, WARNING], strict=False)
    assert has_findings([OK, WARNING], strict=True) and has_findings([ERROR], strict=False)
    assert not has_findings([OK], strict=True)


async def test_commands_act_and_are_audited() -> None:
    store, keys = MemoryStore(), Encryption()
    await store.open()
    commands: list[EncryptionCommand] = [RotateKeys(tenant="acme"), RotateKeys(), RewrapKeys(), StopSweep()]
    texts = []
    for command in commands:
        texts.append(format_encryption(command, await encryption.run_on_journal(keys, store, command, UnixMs(1))))
    assert keys.calls == [("rotate", "acme"), ("rotate", None), ("rewrap", None), ("stop", None)]
    assert texts[0] == "rotate: 3 keys" and texts[2] == "rewrap: 3 keys; 1 cannot be unwrapped"
    assert len(await store.audit.rows(TenantId(""), after=0, limit=10)) == 4
    shown = await encryption.run_on_journal(keys, store, ShowEncryption(), UnixMs(1))
    text = format_encryption(ShowEncryption(), shown)
    assert "is stopped" in text and text.splitlines()[-1].split() == ["acme", "2", "1", "-", "7", "-"]
    assert '"acme"' in format_encryption(ShowEncryption(as_json=True), shown)
    await store.close()


async def test_nobody_destroys_everything_by_leaving_a_name_out() -> None:
    store, keys = MemoryStore(), Encryption()
    await store.open()
    with pytest.raises(BadSetting):
        await encryption.run_on_journal(keys, store, DestroyKeys(tenant=""), UnixMs(1))
    with pytest.raises(BadInput):
        await encryption.run_on_journal(None, store, RotateKeys(), UnixMs(1))
    assert keys.calls == []
    await store.close()


def test_a_duration_is_a_number_with_a_unit() -> None:
    assert [seconds_of(text) for text in ("90m", "12h", "30d")] == [5_400, 43_200, 2_592_000]
    for text in ("0d", "d", "30", "1.5h", "-1d", "9999999m", "٣d"):
        with pytest.raises(BadSetting, match="expires-in"):
            seconds_of(text)


def test_a_request_has_what_was_given_and_nothing_else() -> None:
    assert CreateKey(tenant="a").request(UnixMs(5)) == {"tenant": "a", "role": "user", "name": ""}
    full = CreateKey(tenant="a", role="operator", user="ana", scopes="chat, read", label="l", expires_in="1m")
    assert full.request(UnixMs(5)) == {
        "tenant": "a",
        "role": "operator",
        "name": "l",
        "user": "ana",
        "scopes": ["chat", "read"],
        "expires_at": 60_005,
    }
    with pytest.raises(BadSetting, match="scopes: 'all' is none; allowed: "):
        CreateKey(tenant="a", scopes="chat,all")


ROWS = [ModelRow("tiny", 98_000_000, "Apache-2.0", "/models/tiny.gguf"), ModelRow("big", 4_000_000_000, "", "")]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_models_are_a_table_or_json() -> None:
    lines = format_models(ROWS, as_json=False).splitlines()
    assert lines[0].split() == ["model", "size", "licence", "where"]
    assert lines[1].split() == ["tiny", "98", "MB", "Apache-2.0", "/models/tiny.gguf"]
    assert "4,000 MB" in lines[2] and "not named" in lines[2] and lines[2].endswith("not fetched yet")
    assert json.loads(format_models(ROWS, as_json=True))[1]["size_bytes"] == 4_000_000_000


def test_a_log_gets_a_line_every_tenth_and_a_terminal_one_bar() -> None:
    log, terminal = io.StringIO(), Terminal()
    for out in (log, terminal):
        line = ProgressLine(out)
        for done in range(0, 1_000_001, 10_000):
            line("m.gguf", done, 1_000_000)
        line.end()
    assert len(log.getvalue().splitlines()) == 11 and log.getvalue().endswith("100%  1 of 1 MB\n")
    assert terminal.getvalue().count("\n") == 1 and "[########################] m.gguf  100%" in terminal.getvalue()


def test_the_next_file_begins_a_line_of_its_own() -> None:
    terminal = Terminal()
    line = ProgressLine(terminal)
    line("a", 0, 0)
    line("b", 1, 2)
    assert terminal.getvalue().split("\n")[0].endswith("a  100%  0 of 0 MB")


ISSUER = "https://login.example"


@pytest.mark.parametrize(
    "fields",
    [
        {"issuer": ISSUER},
        {"issuer": ISSUER, "subject": "a", "token_id": "b"},
        {"subject": "a"},
        {"issuer": ISSUER, "subject": "a", "expires_in": "soon"},
    ],
)
def test_what_is_not_plain_is_refused_before_anything_is_opened(fields: dict[str, Any]) -> None:
    with pytest.raises(BadSetting):
        RevokeTokens(**fields)


async def test_a_journal_keeps_what_was_revoked_until_it_has_expired() -> None:
    store = MemoryStore()
    await store.open()
    for command in (
        RevokeTokens(issuer=ISSUER, subject="ana", expires_in="1h"),
        RevokeTokens(issuer=ISSUER, token_id="t1", expires_in="2h"),
    ):
        await tokens.run_on_journal(store, command, NOW)
    listed = await tokens.run_on_journal(store, ListRevocations(), NOW)
    assert isinstance(listed, list) and [row["name"] for row in listed] == ["t1", "ana"]
    shown = format_revocations(listed, as_json=False).splitlines()
    assert shown[0].split() == ["KIND", "NAME", "ISSUER", "REVOKED", "KEPT", "UNTIL", "BY"]
    assert shown[1].split()[:3] == ["token", "t1", ISSUER] and shown[1].endswith("-")
    assert msgspec.json.decode(format_revocations(listed[0], as_json=True))["id"] == 2
    later = await tokens.run_on_journal(store, ListRevocations(), UnixMs(NOW + 5_400_000))
    assert isinstance(later, list) and [row["name"] for row in later] == ["t1"]
    assert len(await store.audit.rows(INSTALLATION, after=0, limit=9)) == 2


@pytest.fixture
async def store() -> Store:
    store = MemoryStore()
    await store.open()
    return store


async def test_an_export_is_its_owners_alone_also_where_a_file_was(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "mary.jsonl"
    path.write_text("old")
    path.chmod(0o644)
    command = ExportUser("mary", tenant="acme", out=str(path))
    assert await users.run_on_journal(store, command, lambda: NOW, shared=False) == 0
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("out", ["", "none/x"])
async def test_an_export_that_cannot_be_written_is_a_sentence_and_no_row(
    store: Store, tmp_path: Path, out: str
) -> None:
    command = ExportUser("mary", tenant="acme", out=str(tmp_path / out))
    with pytest.raises(BadSetting, match="cannot be written"):
        await users.run_on_journal(store, command, lambda: NOW, shared=False)
    assert await store.audit.rows(TenantId("acme"), after=0, limit=9) == []


async def test_an_erasure_that_nobody_carries_out_is_under_way(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    command = EraseUser("mary", tenant="acme")
    assert await users.run_on_journal(store, command, lambda: NOW, shared=False) == 3
    assert capsys.readouterr().out.startswith("The erasure of mary is under way: ")
    as_json = EraseUser("mary", tenant="acme", wait=0, as_json=True)
    assert await users.run_on_journal(store, as_json, lambda: NOW, shared=True) == 3
    assert json.loads(capsys.readouterr().out)["status"] == "under_way"
