"""What needs a credential before its body is read, what is refused whoever sends it, and how a refusal is written."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from starlette.datastructures import Headers

from sessions.model.errors import Limited, Unauthorized
from sessions.model.types import Principal, TenantId, UnixMs
from tests.support.doors.transport import gateway_over, memory_sessions
from tests.support.garbage import no_cycles
from transport.auth.authenticator import Authenticator, key_digest
from transport.auth.origins import OriginPolicy
from transport.http.request_head import plain_head
from transport.http_api.app import make_gate
from transport.http_api.credential_gate import CredentialGate, HeadFields
from transport.http_api.server import Server

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
