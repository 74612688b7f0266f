"""The HTTP API around its routes: credentials, errors, pages, bodies, and doors that are not open yet."""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import re
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.datastructures import Headers

from sessions.model.errors import BadInput, Limited, NotFound, Unauthorized, Unavailable
from sessions.model.types import Principal, TenantId, UnixMs
from testbed.valkey_server import free_port
from tests.support.doors.transport import gateway_over, http_client, memory_sessions
from tests.support.garbage import no_cycles
from tests.support.listening_sockets import needs_ipv6
from transport.auth.authenticator import Authenticator, key_digest
from transport.auth.origins import OriginPolicy
from transport.http import compression
from transport.http.request_head import plain_head
from transport.http_api import app, page_files
from transport.http_api.app import invalid
from transport.http_api.credential_gate import CredentialGate, HeadFields
from transport.http_api.cross_origin import make_gate
from transport.http_api.page_files import PageFiles
from transport.http_api.server import Server
from transport.http_api.starting_door import StartingDoor
from transport.http_api.strict_json import BODY_VALUES_MAX, parsed


@pytest.mark.parametrize(
    ("problem", "code", "param"),
    [
        ({"type": "json_invalid", "loc": ("body", 1), "msg": "x"}, "invalid_request", None),
        ({"type": "missing", "loc": ("body", "model"), "msg": "x"}, "missing_required_parameter", "model"),
        ({"type": "extra_forbidden", "loc": ("body", "x"), "msg": "x"}, "unknown_parameter", "x"),
        (
            {"type": "int_type", "loc": ("body", "items", 2, "list", "text"), "msg": "x"},
            "invalid_request",
            "items[2].text",
        ),
    ],
)
def test_what_is_wrong_with_a_body_is_named(problem: dict[str, Any], code: str, param: str | None) -> None:
    shallow = {"type": "int_type", "loc": (), "msg": "y"}
    error = invalid([shallow, problem])
    assert (error.code, error.param) == (code, param)


async def test_the_api_document_is_made_once_and_not_on_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    make = FastAPI.openapi

    def recorded(app: FastAPI) -> dict[str, Any]:
        threads.append(threading.get_ident())
        return make(app)

    monkeypatch.setattr(FastAPI, "openapi", recorded)
    async with http_client(gateway_over(await memory_sessions())) as client:
        first, second = await asyncio.gather(client.get("/openapi.json"), client.get("/openapi.json"))
    assert first.json() == second.json() and "/v1/sessions" in first.json()["paths"]
    assert len(threads) == 1 and threads[0] != threading.get_ident()


ACME = Principal(tenant=TenantId("acme"), key_id="k")


def authenticator(*, keyed: bool = True, origins: OriginPolicy | None = None) -> Authenticator:
    keys = {key_digest("good"): ACME} if keyed else {}
    return Authenticator(keys, clock=lambda: 0.0, now_ms=lambda: UnixMs(1), origins=origins)


def scope_of(method: str, path: str, *, state: Any = None, query: str = "", **headers: str) -> dict[str, Any]:
    return {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": query.encode(),
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
        "state": {} if state is None else state,
        "client": ("127.0.0.1", 1),
    }


def judged(method: str, path: str, *, keyed: bool = True, upgrade: bool = False, **given: Any) -> str:
    """ "passed", or the code of the refusal."""
    gate = CredentialGate(authenticator(keyed=keyed), lambda: "1")
    error = gate.check(scope_of(method, path, **given), upgrade=upgrade)
    return "passed" if error is None else error.code


def test_what_is_refused_is_free_at_once() -> None:
    gate = CredentialGate(authenticator(), lambda: "1")
    with no_cycles(HeadFields, Unauthorized, Limited):
        for credential in ({}, *({"authorization": f"Bearer sk-{number}"} for number in range(40))):
            assert gate.refused(scope_of("POST", "/v1/responses", **credential) | {"upgrade": False}) is not None


@pytest.mark.parametrize(
    ("method", "path", "needed"),
    [
        ("GET", "/", False),
        ("GET", "/healthz", False),
        ("HEAD", "/app.js", False),
        ("OPTIONS", "/v1/responses", False),
        ("GET", "/v1", True),
        ("GET", "/v1/ws", False),
        ("POST", "/v1/ws", True),
        ("GET", "/v1/ws/tickets", True),
        ("GET", "/v1/models", True),
        ("HEAD", "/v1/nothing", True),
        ("POST", "/", True),
        ("DELETE", "/healthz", True),
        ("PROPFIND", "/app.js", True),
    ],
)
def test_what_needs_a_credential(method: str, path: str, needed: bool) -> None:
    assert judged(method, path) == ("unauthorized" if needed else "passed")
    assert judged(method, path, authorization="Bearer good") == "passed"
    assert judged(method, path, keyed=False) == "passed"


def test_bodies_that_nobody_can_read() -> None:
    for keyed in (True, False):
        good: dict[str, Any] = {"authorization": "Bearer good", "keyed": keyed}
        assert judged("POST", "/v1/responses", content_encoding="br", **good) == "unsupported_content_encoding"
        assert judged("POST", "/v1/responses", content_encoding="Identity", **good) == "passed"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ([("x-api-key", "good")], "passed"),
        ([("x-api-key", "bad")], "unauthorized"),
        ([("x-api-key", "good"), ("x-api-key", "bad")], "unauthorized"),
        ([("x-api-key", "bad"), ("authorization", "Bearer good")], "passed"),
        ([("x-api-key", "good"), ("authorization", "Bearer bad")], "unauthorized"),
        ([("x-api-key", "good"), ("authorization", "Basic x")], "unauthorized"),
    ],
)
def test_of_several_credentials_one_counts_or_none(fields: list[tuple[str, str]], said: str) -> None:
    scope = scope_of("POST", "/v1/messages")
    scope["headers"] = [(name.encode(), value.encode()) for name, value in fields]
    error = CredentialGate(authenticator(), lambda: "1").check(scope, upgrade=False)
    assert ("passed" if error is None else error.code) == said


def test_a_handshake_is_judged_by_the_key_that_it_brings() -> None:
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({}, "passed"),  # it may come in hello
        ({"authorization": "Bearer good"}, "passed"),
        ({"authorization": "Bearer bad"}, "unauthorized"),
        ({"sec_websocket_protocol": "sessile.v1+json, sessile.bearer.Z29vZA"}, "passed"),
        ({"sec_websocket_protocol": "sessile.v1+json, sessile.bearer.YmFk"}, "unauthorized"),
        ({"sec_websocket_protocol": "sessile.bearer.YmFk", "query": "ticket=t"}, "passed"),  # tickets come first
        ({"authorization": "Bearer bad", "query": "ticket=t"}, "unauthorized"),
        ({"authorization": "Bearer good", "origin": "https://evil.example"}, "forbidden"),
    )
    for given, code in cases:
        assert (given, judged("GET", "/v1/ws", upgrade=True, **given)) == (given, code)
    assert judged("GET", "/v1/ws", upgrade=True, keyed=False, authorization="Bearer bad") == "passed"


@pytest.mark.parametrize("allowed", [(), ("https://chat.example",), ("*",)])
@pytest.mark.parametrize("origin", [None, "https://chat.example"])
async def test_a_refusal_has_the_headers_of_any_other_answer(allowed: tuple[str, ...], origin: str | None) -> None:
    """Compared with a refusal that the application writes, behind all that surrounds a route."""
    access = authenticator(origins=OriginPolicy(allowed))
    gateway = gateway_over(await memory_sessions(), access)
    server = Server(gateway, host="127.0.0.1", port=0, web=None)
    await server.start()
    headers = {"x-request-id": "r"} | ({"origin": origin} if origin and allowed else {})
    async with httpx.AsyncClient(base_url=server.url, headers=headers, timeout=60) as http:
        gates = await http.get("/v1/nothing")
        apps = await http.get("/v1/nothing", headers={"authorization": "Bearer good"})
    await server.stop()
    assert (gates.status_code, apps.status_code) == (401, 404)
    own = {"content-length", "date", "www-authenticate", "connection"}
    assert {k: v for k, v in gates.headers.items() if k not in own} == {
        k: v for k, v in apps.headers.items() if k not in own
    }
    assert make_gate(gateway) is not None


@pytest.mark.parametrize(
    "head",
    [
        b"POST /v1/x HTTP/1.1\r\nHost: a\r\n",  # not whole
        b"POST /v1/x HTTP/1.0\r\nHost: a\r\n\r\n",
        b"POST http://a/v1/x HTTP/1.1\r\nHost: a\r\n\r\n",
        b"POST /v1/x HTTP/1.1\r\n\r\n",
        b"POST /v1/x HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"POST /v1/x HTTP/1.1\r\nHost: a\r\n folded\r\n\r\n",
        b"POST /v1/x HTTP/1.1\r\nHost: a\r\nx y: 1\r\n\r\n",
        b"POST /v1/x HTTP/1.1\r\nHost: a\r\nContent-Length: +5\r\n\r\n",
        b"POST /v1/x HTTP/1.1\r\nHost: a\r\nUpgrade: h2c\r\n\r\n",
        b"GET /v1/ws HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\n\r\n",
        b"\x16\x03\x01\x00\xa5",
        b"",
    ],
)
def test_what_is_not_written_plainly_is_left_to_the_parser(head: bytes) -> None:
    assert plain_head(head) is None


def test_a_plain_head_and_what_of_its_body_has_not_come() -> None:
    head = b"POST /v1/%78?a=%3F&b HTTP/1.1\r\nHost: a\r\nContent-Length:  10 \r\nX-A: b:c\r\n\r\n1234"
    scope = plain_head(head)
    assert scope is not None
    assert (scope["method"], scope["path"], scope["query_string"], scope["left"]) == ("POST", "/v1/x", b"a=%3F&b", 6)
    assert scope["headers"][1:] == [(b"content-length", b"10"), (b"x-a", b"b:c")] and not scope["upgrade"]
    chunked = plain_head(b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n")
    assert chunked is not None and chunked["left"] > 1 << 32


def test_headers_are_found_as_starlette_finds_them() -> None:
    given = [(b"host", b"a"), (b"x-forwarded-for", b"1"), (b"x-forwarded-for", b"2"), (b"x-name", b"\xe4")]
    fields, theirs = HeadFields(given), Headers(raw=given)
    for name in ("host", "x-forwarded-for", "x-name", "origin"):
        assert fields.get(name) == theirs.get(name) and fields.getlist(name) == theirs.getlist(name)
        assert (name in fields) == (name in theirs)
    assert fields.get("content-length", "0") == "0"


def sha384(text: str) -> str:
    return "sha384-" + base64.b64encode(hashlib.sha384(text.encode()).digest()).decode()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "index.html").write_text(
        '<link rel="icon" href="i.svg"><link rel="stylesheet" href="s.css"><script type="module" src="a.js"></script>'
    )
    (tmp_path / "s.css").write_text("p {}")
    (tmp_path / "a.js").write_text('import {\n  x,\n} from "./b.js";\n/** @typedef {import("./d.js").T} T */\n')
    (tmp_path / "b.js").write_text('import "./c.js";\nexport * from "./a.js";\n')
    (tmp_path / "c.js").write_text("")
    (tmp_path / "d.js").write_text("")
    return tmp_path


def test_a_page_gets_the_hash_of_its_parts_and_of_what_they_import(folder: Path) -> None:
    html = PageFiles(folder).get("").body.decode()
    assert f'href="s.css" integrity="{sha384("p {}")}">' in html
    assert f'src="a.js" integrity="{sha384((folder / "a.js").read_text())}"></script>' in html
    assert re.findall(r'modulepreload" href="(.)\.js" integrity="sha384-[^"]{64}"', html) == ["b", "c"]
    assert html.index("modulepreload") < html.index("<script")
    assert '<link rel="icon" href="i.svg">' in html


def test_a_page_without_one_of_its_parts_is_not_sent(folder: Path) -> None:
    (folder / "b.js").unlink()
    with pytest.raises(NotFound, match=r"/b\.js"):
        PageFiles(folder).get("")
    assert PageFiles(folder).get("s.css").media_type == "text/css; charset=utf-8"


async def test_a_file_is_kept_and_compressed_once_however_its_path_is_spelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed: list[int] = []

    def counted(body: bytes) -> bytes:
        packed.append(len(body))
        return gzip.compress(body)

    for module in (compression, page_files, app):
        monkeypatch.setattr(module, "gzipped", counted)
    monkeypatch.setattr(FastAPI, "openapi", lambda app: {"openapi": "3.1.0", "info": "x" * 2000})  # soon made
    script = "// " + "words " * 1000
    (tmp_path / "a.js").write_text(script)
    (tmp_path / "index.html").write_text('<script src="a.js"></script>' + " " * 2000)
    async with http_client(gateway_over(await memory_sessions()), web=tmp_path) as client:
        for _ in range(2):
            for path in ("/a.js", "/.%2Fa.js", "/.%2F.%2Fa.js", "/.%2F%2Fa.js"):
                answer = await client.get(path)
                assert (answer.text, answer.headers["content-encoding"]) == (script, "gzip")
                assert (answer.headers["vary"], answer.headers["etag"][:2]) == ("accept-encoding", "W/")
            assert "integrity" in (await client.get("/")).text
            assert "openapi" in (await client.get("/openapi.json")).json()
        plain = await client.get("/a.js", headers={"accept-encoding": "identity"})
        assert plain.text == script and "content-encoding" not in plain.headers
    assert len(packed) == len(set(packed)) > 2


@needs_ipv6
@pytest.mark.parametrize("host", ["::1", "[::1]"])
async def test_it_listens_on_ipv6_however_its_literal_is_spelled(host: str) -> None:
    server = Server(gateway_over(await memory_sessions()), host=host, port=0, web=None)
    await server.start()
    assert server.url.startswith("http://[::1]:")
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        assert (await client.get("/healthz")).status_code == 200
    await server.stop()


async def test_it_lives_is_not_ready_and_refuses_the_rest_with_the_reason() -> None:
    port = free_port()
    upgrade = {"connection": "upgrade", "upgrade": "websocket", "sec-websocket-version": "13", "sec-websocket-key": "x"}
    async with (
        StartingDoor(lambda: "waiting for the journal", host="127.0.0.1", port=port) as door,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
    ):
        alive = await client.get("/healthz")
        assert (alive.status_code, alive.json()["status"]) == (200, "ok")
        for path in ("/readyz", "/health"):
            answer = await client.get(path)
            assert answer.status_code == 503
            assert answer.json() == {"status": "unavailable", "reason": "waiting for the journal"}
        refused = [await client.post("/v1/chat/completions", json={}), await client.get("/v1/ws", headers=upgrade)]
        for answer in refused:
            assert answer.status_code == 503 and answer.headers["retry-after"] == "2"
            error = answer.json()["error"]
            assert (error["code"], error["retryable"]) == ("starting", True)
            assert error["message"] == "The server is waiting for the journal. Try again."
        await door.stop()
        await door.stop()
        async with StartingDoor(lambda: None, host="127.0.0.1", port=port):  # the port is free again
            with pytest.raises(Unavailable):
                await StartingDoor(lambda: None, host="127.0.0.1", port=port).__aenter__()


async def test_a_port_of_the_servers_own_choice_has_no_such_door() -> None:
    async with StartingDoor(lambda: None, host="127.0.0.1", port=0):
        pass


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b'{"a": [1, 2.5, null, true, "\\ud83d\\ude00"]}', {"a": [1, 2.5, None, True, "\U0001f600"]}),
        (b'{"a": 9007199254740991}', {"a": 2**53 - 1}),
        (b'["not an object"]', ["not an object"]),
    ],
)
def test_what_is_well_formed_is_read(text: bytes, value: Any) -> None:
    assert parsed(text) == value


@pytest.mark.parametrize(
    ("text", "param"),
    [
        (b"{", None),
        (b'{"a": "\\ud800"}', None),
        (b'{"a": "\xff"}', None),
        (b'{"a": NaN}', None),
        (b'{"a": 1e999}', None),
        (b'{"a": {"b": [0, 9007199254740992]}}', "a.b[1]"),
        (b'{"a": ' + b"1" * 40 + b"}", "a"),
        (b'{"a": ' + b"[" * 100 + b"]" * 100 + b"}", None),
        (b'{"a": ' + b"[" * 100_000, None),
        (b'{"a": [' + b"0," * BODY_VALUES_MAX + b"0]}", None),
    ],
)
def test_what_no_log_can_hold_is_refused(text: bytes, param: str | None) -> None:
    with pytest.raises(BadInput) as caught:
        parsed(text)
    assert (caught.value.code, caught.value.param) == ("invalid_request", param)


def test_a_long_name_is_clipped_in_its_error() -> None:
    with pytest.raises(BadInput) as caught:
        parsed(b'{"' + b"k" * 500_000 + b'": [[1e999]]}'.replace(b"1e999", b"9007199254740992"))
    assert caught.value.param == f"{'k' * 64}...[0][0]"
    with pytest.raises(BadInput) as caught:
        raise invalid([{"type": "extra_forbidden", "msg": "", "loc": ("body", "k" * 500_000)}])
    assert caught.value.param == f"{'k' * 64}..."
