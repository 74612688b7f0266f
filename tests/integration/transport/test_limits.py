"""`/v1/limits`: a tenant's table and the KV that it holds, from what the engine counts, by replica."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from actors.peer.frames import Surveyed
from actors.peer.links import LinkDown
from inference.kv.tenant_quota import KvHoldings
from inference.simulated import SimulatedEngine
from sessions.model.types import Principal, SessionId, SessionKey, TenantId
from sessions.ports import Engine
from tests.support.doors.assembly import Assembly, assembled
from transport.auth.authenticator import key_digest
from transport.ops.operator_api import LocalOperatorApi, held_kv

ACME, BETA = TenantId("acme"), TenantId("beta")
TOKEN_BYTES = 1_000
KEYS = {
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
    async with assembled(keys=KEYS, limits_file=file) as server:
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


async def test_without_a_limits_file() -> None:
    async with assembled(keys=KEYS) as server:
        told = await limits(server, "acme")
        assert told["limits"] is None and told["kv"]["limit_bytes"] is None


@pytest.mark.parametrize("silent", [False, True])
def test_of_a_cluster_each_replica_is_shown_and_who_does_not_answer_is_named(silent: bool) -> None:
    answers: dict[str, Surveyed | LinkDown] = {"r1": Surveyed(1, (), 0, False, 7), "r2": Surveyed(1, (), 0, False)}
    if silent:
        answers["r3"] = LinkDown("keepalive", "no answer in 10 s")
    held = held_kv(answers)
    assert held.bytes_of == {"r1": 7, "r2": None}
    assert list(held.silent) == (["r3"] if silent else [])
