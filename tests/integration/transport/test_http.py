"""HTTP at a real port: what it answers, whom, how many at a time, and where lists go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import msgspec
import pytest
from websockets.asyncio.client import connect

from actors.peer.frames import Surveyed
from actors.peer.links import LinkDown
from inference.kv.tenant_quota import KvHoldings
from inference.simulated import SimulatedEngine
from sessions.model.errors import BadInput, EngineLost, Unavailable
from sessions.model.types import Principal, SessionId, SessionKey, TenantId
from sessions.ports import Engine
from tests.support.doors.assembly import Assembly, assembled, wall_ms
from tests.support.doors.grpc_door import error_of
from tests.support.doors.transport import app_of
from tests.support.doors.websocket_wire import wire
from transport.auth.authenticator import Authenticator, key_digest
from transport.auth.origins import OriginPolicy
from transport.grpc_api import sessile_pb2 as pb
from transport.grpc_api.server import GrpcServer
from transport.grpc_api.sessile_pb2_grpc import SessionsStub
from transport.http import http_connection
from transport.http_api.server import Server
from transport.ops.operator_api import LocalOperatorApi, held_kv


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
    server.gateway.drain()
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
    server.server._app._in_context.body_bytes_max = 1000
    inner = await app_of(server.server)

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
    inner = await app_of(server.server)

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
    await server.server.load()
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


STRANGE = ("", "/", "a/", "/a", ".", "1.", ".x", ":", "~", " ", "é", "%", "0" * 70, "null", "a b", "\x00", "..", "-1")


async def test_no_list_fails_at_an_after_that_it_never_gave() -> None:
    async with assembled() as assembly, httpx.AsyncClient(base_url=assembly.server.url, timeout=60) as client:
        paths = (await client.get("/openapi.json")).json()["paths"]
        lists = [
            path.replace("{conversation}", "none").replace("{response_id}", "resp_none")
            for path, operations in paths.items()
            for parameter in operations.get("get", {}).get("parameters", ())
            if parameter["name"] == "after" and not path.endswith("/events")
        ]
        assert len(lists) >= 7
        failed = {
            (path, after): answer.status_code
            for path in lists
            for after in STRANGE
            if (answer := await client.get(path, params={"after": after})).status_code == 500
        }
        assert failed == {}


async def test_sessions_after_an_empty_part_are_a_bad_request(http: httpx.AsyncClient) -> None:
    for after in ("", "a/", "/a", " "):
        answer = await http.get("/v1/sessions", params={"after": after})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "after")


KEYS = {
    key_digest(f"key-{name}"): Principal(tenant=TenantId("acme"), key_id=name, role="service", scopes=("chat", "read"))
    for name in "ab"
}


def limited_to(path: Path, requests: int) -> Path:
    path.write_text(f"[default]\nkey_requests_per_minute = {requests}\n")
    return path


def of_key(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer key-{name}"}


async def test_wrong_bodies_and_questions_count_over_http(tmp_path: Path) -> None:
    async with (
        assembled(keys=KEYS, limits_file=limited_to(tmp_path / "limits.toml", 3)) as server,
        httpx.AsyncClient(base_url=server.server.url, timeout=60) as http,
    ):

        async def post(key: str, **more: Any) -> httpx.Response:
            headers = {**of_key(key), **more}
            return await http.post("/v1/responses", content=b'{"input": [', headers=headers)

        assert [(await post("a")).status_code for _ in range(4)] == [400, 400, 400, 429]
        refused = await post("a")
        assert refused.json()["error"]["param"] == "key_requests_per_minute"
        asked = [(await http.get("/v1/sessions", headers=of_key("b"))).status_code for _ in range(31)]
        assert asked == [200] * 30 + [429], "what writes nothing counts a tenth"
        cancelled = await http.post("/v1/responses/resp_1/cancel", headers=of_key("a"))
        assert cancelled.status_code == 404, "whether it may is looked at whatever is left"


async def test_commands_over_a_socket_count(tmp_path: Path) -> None:
    async with assembled(keys=KEYS, limits_file=limited_to(tmp_path / "limits.toml", 1)) as server:
        url = server.server.url.replace("http", "ws") + "/v1/ws"
        async with asyncio.timeout(60), connect(url, additional_headers=of_key("a")) as socket:
            await socket.send('{"type": "hello"}')
            for number in range(12):
                await socket.send(msgspec.json.encode({"type": "session.list", "id": f"l{number}"}).decode())
            answers = dict[str, str | None]()
            while len(answers) < 12:
                answer = msgspec.json.decode(await socket.recv())
                if "id" in answer:
                    answers[answer["id"]] = answer.get("error", {}).get("code")
            refused = [number for number in range(12) if answers[f"l{number}"] is not None]
            assert {answers[f"l{number}"] for number in refused} == {"rate_limited"}
            assert refused and 0 not in refused


async def test_wrong_calls_count_a_tenth_over_grpc(tmp_path: Path) -> None:
    async with assembled(keys=KEYS, limits_file=limited_to(tmp_path / "limits.toml", 1)) as server:
        door = GrpcServer(server.gateway, host="127.0.0.1", port=0)
        assert await door.start()
        try:
            async with grpc.aio.insecure_channel(door.address) as channel:
                send: Any = SessionsStub(channel).Send
                codes = []
                for _ in range(11):
                    try:
                        await send(pb.MessageCreate(session="not there"), metadata=tuple(of_key("a").items()))
                    except grpc.aio.AioRpcError as error:
                        codes.append((error.code(), error_of(error).param))
            assert codes[-1] == (grpc.StatusCode.RESOURCE_EXHAUSTED, "key_requests_per_minute")
            assert [code for code, _ in codes[:-1]] == [grpc.StatusCode.INVALID_ARGUMENT] * 10
        finally:
            await door.stop()


ACME, BETA = TenantId("acme"), TenantId("beta")
TOKEN_BYTES = 1_000
LIMITS_KEYS = {
    key_digest(name): principal
    for name, principal in {
        "acme": Principal(tenant=ACME, key_id="acme", role="service", scopes=("chat", "read", "admin")),
        "beta": Principal(tenant=BETA, key_id="beta", role="service", scopes=("chat", "read", "admin")),
        "boss": Principal(tenant=TenantId("ops"), key_id="boss", role="operator", scopes=("admin",)),
    }.items()
}


def engine_of(server: Assembly) -> Engine:
    assert isinstance(server.gateway.operator_api, LocalOperatorApi)
    return server.gateway.operator_api._engine


async def limits(server: Assembly, key: str, status: int = 200, **query: str) -> dict[str, Any]:
    async with httpx.AsyncClient(base_url=server.server.url, timeout=60) as http:
        answer = await http.get("/v1/limits", params=query, headers={"authorization": f"Bearer {key}"})
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def ask(server: Assembly, key: str) -> SessionKey:
    """A turn; the session that holds what came of it."""
    async with httpx.AsyncClient(
        base_url=server.server.url, headers={"authorization": f"Bearer {key}"}, timeout=60
    ) as http:
        made = (await http.post("/v1/conversations", json={})).json()["id"]
        body = {"model": "simulated", "input": f"hello from {key}", "conversation": made, "max_output_tokens": 8}
        answer = await http.post("/v1/responses", json=body)
        assert answer.status_code == 200, answer.text
    return SessionKey(TenantId(key), SessionId(made))


async def test_the_table_and_what_is_held_of_each_tenant(tmp_path: Path) -> None:
    file = tmp_path / "limits.toml"
    file.write_text("[default]\nsessions = 9\n[tenants.acme]\nkv_bytes = 50_000\nuser.concurrent_turns = 3\n")
    async with assembled(keys=LIMITS_KEYS, limits_file=file) as server:
        engine = engine_of(server)
        before = await limits(server, "acme")
        assert before["kv"]["replicas"] == [{"replica": "local", "held_bytes": None}], "it does not count"
        assert before["kv"]["held_bytes"] is None and not before["kv"]["complete"]
        asked = [await ask(server, key) for key in ("acme", "acme", "beta")]
        assert isinstance(engine, SimulatedEngine)
        held = {tenant: sum(engine.place(k).tokens for k in asked if k.tenant == tenant) for tenant in (ACME, BETA)}
        assert held[ACME] > held[BETA] > 0
        engine.holdings = KvHoldings(lambda tenant: held.get(tenant, 0) * TOKEN_BYTES)  # type: ignore[attr-defined]
        told = await limits(server, "acme")
        assert (told["object"], told["tenant"]) == ("limits", "acme")
        assert told["limits"]["kv_bytes"] == 50_000 and told["limits"]["user"]["concurrent_turns"] == 3
        assert told["kv"]["limit_bytes"] == 50_000 and told["kv"]["complete"] and told["kv"]["silent"] == {}
        assert told["kv"]["held_bytes"] == held[ACME] * TOKEN_BYTES
        others = await limits(server, "boss", tenant="beta")
        assert others["kv"]["replicas"] == [{"replica": "local", "held_bytes": held[BETA] * TOKEN_BYTES}]
        assert others["kv"]["limit_bytes"] is None and others["limits"]["sessions"] == 9
        await limits(server, "beta", 403, tenant="acme")
        await limits(server, "boss", 400, tenant="")


@pytest.mark.parametrize("silent", [False, True])
def test_of_a_cluster_each_replica_is_shown_and_who_does_not_answer_is_named(silent: bool) -> None:
    answers: dict[str, Surveyed | LinkDown] = {"r1": Surveyed(1, (), 0, False, 7), "r2": Surveyed(1, (), 0, False)}
    if silent:
        answers["r3"] = LinkDown("keepalive", "no answer in 10 s")
    held = held_kv(answers)
    assert held.bytes_of == {"r1": 7, "r2": None}
    assert list(held.silent) == (["r3"] if silent else [])


LISTED = "https://app.example"
KEY = {"authorization": "Bearer k"}


def guarded(*origins: str) -> Authenticator:
    who = Principal(tenant=TenantId("t"), key_id="k")
    clock = asyncio.get_running_loop().time
    return Authenticator({key_digest("k"): who}, clock=clock, now_ms=wall_ms, origins=OriginPolicy(origins))


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    access = guarded(LISTED)
    async with (
        assembled(admit=lambda _: (access, None)) as assembly,
        httpx.AsyncClient(base_url=assembly.server.url, timeout=60) as client,
    ):
        yield client


async def test_a_listed_page_may_ask_and_read(client: httpx.AsyncClient) -> None:
    asking = {
        "origin": LISTED,
        "access-control-request-method": "PATCH",
        "access-control-request-headers": "authorization, content-type, idempotency-key",
    }
    asked = await client.options("/v1/sessions/s", headers=asking)
    assert asked.status_code == 200 and asked.headers["access-control-allow-origin"] == LISTED
    assert "PATCH" in asked.headers["access-control-allow-methods"]
    assert "access-control-allow-credentials" not in asked.headers  # no cookies
    answer = await client.get("/v1/sessions", headers={**KEY, "origin": LISTED})
    assert answer.status_code == 200 and answer.headers["access-control-allow-origin"] == LISTED
    assert "x-request-id" in answer.headers["access-control-expose-headers"]
    refused = await client.get("/v1/sessions", headers={"origin": LISTED})
    assert refused.status_code == 401 and refused.headers["access-control-allow-origin"] == LISTED  # it may read why


async def test_another_page_is_refused_and_told_nothing(client: httpx.AsyncClient) -> None:
    for origin in ["https://evil.example", "null", "http://app.example", "https://app.example.evil"]:
        asked = await client.options("/v1/sessions", headers={"origin": origin, "access-control-request-method": "GET"})
        assert asked.status_code == 400 and "access-control-allow-origin" not in asked.headers
        answer = await client.get("/v1/sessions", headers={**KEY, "origin": origin})
        assert answer.status_code == 403 and "access-control-allow-origin" not in answer.headers
        simple = await client.post("/v1/ws/tickets", headers={**KEY, "origin": origin, "content-type": "text/plain"})
        assert simple.status_code == 403


async def test_without_a_list_no_page_is_told_anything() -> None:
    access = guarded()
    async with (
        assembled(admit=lambda _: (access, None)) as assembly,
        httpx.AsyncClient(base_url=assembly.server.url, timeout=60) as client,
    ):
        asked = await client.options("/v1/sessions", headers={"origin": LISTED, "access-control-request-method": "GET"})
        assert asked.status_code == 405 and "access-control-allow-origin" not in asked.headers
        assert (await client.get("/v1/sessions", headers={**KEY, "origin": LISTED})).status_code == 403


async def test_an_address_that_is_wrong_too_often_is_told_so_over_http(client: httpx.AsyncClient) -> None:
    answers = [await client.get("/v1/sessions", headers={"authorization": f"Bearer wrong-{n}"}) for n in range(25)]
    assert [answer.status_code for answer in answers] == [401] * 20 + [429] * 5
    assert int(answers[-1].headers["retry-after"]) >= 1
    assert (await client.get("/v1/sessions", headers=KEY)).status_code == 200
