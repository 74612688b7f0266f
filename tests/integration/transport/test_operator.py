"""`/v1/operator`: what operators see of a server, and that nobody else sees it; and `/metrics` likewise."""

from __future__ import annotations

import httpx
import pytest

from sessions.model.types import Principal, TenantId
from tests.support.doors.assembly import Assembly, assembled
from transport.auth.authenticator import key_digest

ACME = TenantId("acme")
KEYS = {
    key_digest(name): principal
    for name, principal in {
        "user": Principal(tenant=ACME, key_id="k1", user="ann"),
        "service": Principal(tenant=ACME, key_id="k2", role="service", scopes=("chat", "read", "usage", "admin")),
        "operator": Principal(tenant=ACME, key_id="k3", role="operator", scopes=("admin",)),
        "reader": Principal(tenant=ACME, key_id="k4", role="operator", scopes=("read",)),
    }.items()
}
READS = ("/metrics", "/v1/operator/overview", "/v1/operator/series", "/v1/operator/sessions")


def client(server: Assembly, key: str | None) -> httpx.AsyncClient:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    return httpx.AsyncClient(base_url=server.server.url, headers=headers, timeout=60)


async def chat(server: Assembly, key: str | None) -> None:
    async with client(server, key) as http:
        body = {"model": "simulated", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 6}
        answer = await http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text


async def test_an_operator_sees_replicas_sessions_and_health() -> None:
    async with assembled(keys=KEYS) as server:
        await chat(server, "user")
        async with client(server, "operator") as http:
            seen = (await http.get("/v1/operator/overview")).json()
            (replica,) = seen["replicas"]
            assert (replica["replica"], replica["state"], replica["model"]) == ("local", "serving", "simulated")
            assert replica["slots"] > 0 and replica["load"] == 0
            assert seen["health"]["answers"] == 1
            assert seen["health"]["ttft_s"]["p95"] > 0
            assert seen["health"]["ended"] == {"max_output_tokens": 1}
            assert seen["doors"]["commands"] >= 1
            listed = (await http.get("/v1/operator/sessions")).json()
            (session,) = listed["data"]
            assert (session["tenant"], session["replica"], session["state"]) == ("acme", "local", "idle")
            assert session["reason"] == "new; the only replica"
            assert (session["kv_tier"], listed["total"], listed["silent"]) == ("device", 1, {})
            assert "user" not in session, "no more than where it is and how it does"
            nothing = (await http.get("/v1/operator/sessions", params={"state": "turn"})).json()
            assert nothing["data"] == []
            assert (await http.get("/v1/operator/sessions", params={"state": "asleep"})).status_code == 400


async def test_sessions_are_paged() -> None:
    async with assembled() as server:
        for _ in range(3):
            await chat(server, None)
        async with client(server, None) as http:
            first = (await http.get("/v1/operator/sessions", params={"limit": 2})).json()
            rest = (await http.get("/v1/operator/sessions", params={"limit": 2, "after": first["last_id"]})).json()
            assert (first["has_more"], rest["has_more"], first["total"]) == (True, False, 3)
            names = [each["session"] for each in first["data"] + rest["data"]]
            assert names == sorted(set(names)) and len(names) == 3
            wrong = await http.get("/v1/operator/sessions", params={"after": "no-slash"})
            assert wrong.status_code == 400


@pytest.mark.parametrize(("key", "status"), [(None, 401), ("user", 403), ("service", 403), ("reader", 403)])
async def test_nobody_else_does(key: str | None, status: int) -> None:
    async with assembled(keys=KEYS) as server, client(server, key) as http:
        for path in READS:
            assert (await http.get(path)).status_code == status, path
        assert (await http.post("/v1/operator/replicas/local/drain", json={})).status_code == status
        answer = await http.post("/v1/operator/sessions/acme/s/handoff", json={"replica": "local"})
        assert answer.status_code == status


async def test_where_there_is_one_replica_nothing_is_drained_or_moved() -> None:
    async with assembled() as server, client(server, None) as http:
        for path, body in (
            ("/v1/operator/replicas/local/drain", {}),
            ("/v1/operator/sessions/local/s/handoff", {"replica": "local"}),
        ):
            answer = await http.post(path, json=body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (409, "session_stays")
        assert (await http.post("/v1/operator/sessions/local/s/handoff", json={})).status_code == 400


async def test_the_page_is_served_and_knows_nothing_by_itself() -> None:
    async with assembled(keys=KEYS) as server, client(server, None) as http:
        page = await http.get("/operator")
        assert page.status_code == 200 and "Operator" in page.text
        assert "script-src 'self'" in page.headers["content-security-policy"]
        for name in ("operator.js", "operator.css"):
            assert (await http.get(f"/{name}")).status_code == 200
