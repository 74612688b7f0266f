"""The HTTP side: health, tickets, the page, errors in OpenAI's shape, and limits before anybody is known."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from inference.simulated import SimulatedEngine
from sessions.model.errors import BadInput, EngineLost, Unavailable
from sessions.model.types import Principal, TenantId
from tests.support.doors.assembly import Assembly, assembled
from tests.support.doors.websocket_wire import wire
from transport.auth.authenticator import Authenticator, key_digest
from transport.http import http_connection
from transport.http_api.server import Server


@pytest.fixture
async def server() -> AsyncIterator[Assembly]:
    async with assembled() as running:
        yield running


@pytest.fixture
async def http(server: Assembly) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.server.url, timeout=60) as client:
        yield client


async def raw(server: Assembly, data: bytes) -> bytes:
    """Everything that comes back for bytes as they are, up to the end of the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.server.port)
    writer.write(data)
    async with asyncio.timeout(60):
        answer = await reader.read()
    writer.close()
    return answer


async def test_health_and_readiness(server: Assembly, http: httpx.AsyncClient) -> None:
    assert (await http.get("/healthz")).json()["status"] == "ok"
    assert (await http.get("/readyz")).status_code == 200
    assert isinstance(server.engine, SimulatedEngine)
    server.engine.lose(EngineLost("engine_lost", "The engine is away."))
    answer = await http.get("/readyz")
    assert (answer.status_code, answer.json()["reason"]) == (503, "The engine is away.")
    assert "sessile_engine_away 1.0" in (await http.get("/metrics")).text
    server.engine.recover()
    assert (await http.get("/readyz")).status_code == 200
    server.gateway.draining = True
    answer = await http.get("/readyz")
    assert (answer.status_code, answer.json()["reason"]) == (503, "draining")
    assert (await http.get("/healthz")).status_code == 200


async def test_errors_have_openais_shape_and_every_answer_a_request_id(http: httpx.AsyncClient) -> None:
    missing = await http.get("/v1/nothing")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "not_found"
    assert set(missing.json()["error"]) == {"type", "code", "message", "param", "retryable"}
    assert missing.headers["x-request-id"].startswith("req_")
    assert missing.headers["x-content-type-options"] == "nosniff"
    wrong = await http.put("/healthz", headers={"x-request-id": "mine-1"})
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")
    assert wrong.headers["x-request-id"] == "mine-1"
    assert "allow" in wrong.headers
    odd = await http.get("/healthz", headers={"x-request-id": "no\tgood" * 20})
    assert odd.headers["x-request-id"].startswith("req_")


async def test_openapi_documents(http: httpx.AsyncClient) -> None:
    paths = (await http.get("/openapi.json")).json()["paths"]
    assert {"/healthz", "/readyz", "/v1/ws/tickets"} <= paths.keys()
    assert (await http.get("/docs")).status_code == 200


async def test_a_foreign_host_name_is_not_answered(http: httpx.AsyncClient) -> None:
    answer = await http.get("/healthz", headers={"host": "evil.example"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")


async def test_a_ticket_for_a_key() -> None:
    keys = {key_digest("sk-1"): Principal(tenant=TenantId("acme"), key_id="k1")}
    async with assembled(keys=keys) as server, httpx.AsyncClient(base_url=server.server.url, timeout=60) as http:
        refused = await http.post("/v1/ws/tickets")
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "unauthorized")
        refused = await http.post("/v1/ws/tickets", headers={"authorization": "Bearer wrong"})
        assert refused.status_code == 401
        granted = await http.post("/v1/ws/tickets", headers={"authorization": "Bearer sk-1"})
        assert (granted.status_code, granted.json()["expires_in"]) == (201, 30)
        assert granted.headers["cache-control"] == "no-store"
        foreign = {"authorization": "Bearer sk-1", "origin": "https://evil.example"}
        assert (await http.post("/v1/ws/tickets", headers=foreign)).status_code == 403
        async with wire(server.server.port, path=f"/v1/ws?ticket={granted.json()['ticket']}") as client:
            await client.hello()


async def test_the_page_comes_under_a_policy_and_is_asked_for_anew(server: Assembly, tmp_path: Path) -> None:
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "index.html").write_text("<!doctype html>one")
    (tmp_path / "web" / "app.js").write_text("1")
    (tmp_path / "web" / ".hidden").write_text("secret")
    (tmp_path / "outside.txt").write_text("secret")
    (tmp_path / "web" / "link.txt").symlink_to(tmp_path / "outside.txt")
    page = Server(server.gateway, host="127.0.0.1", port=0, web=tmp_path / "web")
    await page.start()
    async with httpx.AsyncClient(base_url=page.url, timeout=60) as http:
        first = await http.get("/")
        assert first.text == "<!doctype html>one"
        assert first.headers["content-type"] == "text/html; charset=utf-8"
        assert "default-src 'none'" in first.headers["content-security-policy"]
        assert first.headers["cache-control"] == "no-cache"
        etag = first.headers["etag"]
        again = await http.get("/", headers={"if-none-match": etag})
        assert (again.status_code, again.content) == (304, b"")
        assert (await http.head("/app.js")).headers["content-type"] == "text/javascript; charset=utf-8"
        (tmp_path / "web" / "index.html").write_text("<!doctype html>another")
        changed = await http.get("/", headers={"if-none-match": etag})
        assert (changed.status_code, changed.text) == (200, "<!doctype html>another")
        for path in (
            "/.hidden",
            "/link.txt",
            "/../outside.txt",
            "/%2e%2e/outside.txt",
            "/..%2foutside.txt",
            "/%00",
            "/a" * 900,
        ):
            answer = await http.get(path)
            assert answer.status_code == 404, path
            assert "secret" not in answer.text
    await page.stop()


async def test_a_body_beyond_the_limit(server: Assembly) -> None:
    app = server.server._app
    app.body_bytes_max = 1000  # type: ignore[attr-defined]
    inner: FastAPI = app.app  # type: ignore[attr-defined]

    @inner.post("/echo")
    async def echo(body: dict[str, str]) -> dict[str, str]:
        return body

    inner.router.routes.insert(0, inner.router.routes.pop())
    async with httpx.AsyncClient(base_url=server.server.url, timeout=60) as http:
        assert (await http.post("/echo", json={"a": "x" * 900})).status_code == 200
        large = await http.post("/echo", json={"a": "x" * 2000})
        assert (large.status_code, large.json()["error"]["code"]) == (413, "too_large")
        wrong = await http.post("/echo", json={"a": 3})
        assert (wrong.status_code, wrong.json()["error"]["code"], wrong.json()["error"]["param"]) == (
            400,
            "invalid_request",
            "a",
        )


async def test_a_failure_of_ours_says_nothing_of_itself(server: Assembly) -> None:
    inner: FastAPI = server.server._app.app  # type: ignore[attr-defined]

    @inner.get("/broken")
    async def broken() -> None:
        raise ValueError("a secret of ours")

    inner.router.routes.insert(0, inner.router.routes.pop())
    async with httpx.AsyncClient(base_url=server.server.url, timeout=60) as http:
        answer = await http.get("/broken")
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
        assert "secret" not in answer.text


# -- before anybody is known -----------------------------------------------------------------------------------------


async def test_a_head_that_is_too_large_or_too_slow(server: Assembly, monkeypatch: pytest.MonkeyPatch) -> None:
    endless = b"GET / HTTP/1.1\r\n" + b"x: " + b"y" * http_connection.HEAD_BYTES_MAX
    assert (await raw(server, endless)).startswith(b"HTTP/1.1 431 ")
    assert (await raw(server, b"nonsense\r\n\r\n")).startswith(b"HTTP/1.1 400 ")
    monkeypatch.setattr(http_connection, "HEAD_S", 0.1)
    monkeypatch.setattr(http_connection, "BODY_S", 0.1)
    for slow in (b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: localhost\r\n", b"POST /v1/ws/tickets HTTP/1.1\r\n"):
        assert (await raw(server, slow)).startswith(b"HTTP/1.1 408 ")
    twice = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /healthz HT"
    answer = await raw(server, twice)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"HTTP/1.1 408 " in answer
    assert not server.server._state.connections


async def test_too_many_plain_connections(server: Assembly, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "CONNECTIONS_MAX", 1)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.server.port)
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await reader.readuntil(b"}")
    assert (await raw(server, b"")).startswith(b"HTTP/1.1 503 ")
    writer.close()


async def test_addresses_that_cannot_be_had(server: Assembly) -> None:
    with pytest.raises(BadInput) as forbidden:
        await Server(server.gateway, host="0.0.0.0", port=0).start()
    assert forbidden.value.param == "host"
    with pytest.raises(Unavailable) as taken:
        await Server(server.gateway, host="127.0.0.1", port=server.server.port).start()
    assert str(server.server.port) in taken.value.public_message
    keys = {key_digest("k"): Principal(tenant=TenantId("t"), key_id="k")}
    server.gateway.access = Authenticator(keys, clock=lambda: 0.0, now_ms=server.gateway.now_ms)
    anywhere = Server(server.gateway, host="0.0.0.0", port=0)
    await anywhere.start()
    await anywhere.stop()
