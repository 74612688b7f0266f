"""`/v1/limits`: what a tenant may take, and how much KV each replica holds of it."""

from __future__ import annotations

from typing import Any

import pytest

from sessions.model.types import SCOPES, Principal, TenantId, UnixMs
from tests.support.doors.transport import gateway_over, http_client, memory_sessions
from transport.auth.authenticator import Authenticator, key_digest
from transport.gateway import Gateway, GatewayServices
from transport.ops.operator_api import HeldKV

KEYS = {
    key_digest(role): Principal(tenant=TenantId("acme"), key_id=role, role=role, scopes=SCOPES)
    for role in ("service", "operator")
}


class Replicas:
    def __init__(self, held: HeldKV) -> None:
        self.held = held

    async def kv_of(self, tenant: TenantId) -> HeldKV:
        return self.held


async def gateway_of(held: HeldKV | None) -> Gateway:
    access = Authenticator(KEYS, clock=lambda: 0.0, now_ms=lambda: UnixMs(1))
    operator_api: Any = None if held is None else Replicas(held)
    return gateway_over(await memory_sessions(), access, services=GatewayServices(operator_api=operator_api))


@pytest.mark.parametrize(
    ("held", "total", "complete"),
    [
        (HeldKV({"r1": 5, "r2": 7}, {}), 12, True),
        (HeldKV({"r1": 5, "r2": None}, {}), 5, False),
        (HeldKV({"r1": None}, {}), None, False),
        (HeldKV({"r1": 5}, {"r2": "no answer"}), 5, False),
    ],
)
async def test_the_sum_is_complete_where_every_replica_counts(held: HeldKV, total: int | None, complete: bool) -> None:
    async with http_client(await gateway_of(held), authorization="Bearer service") as client:
        kv = (await client.get("/v1/limits")).json()["kv"]
        assert (kv["held_bytes"], kv["complete"], kv["silent"]) == (total, complete, held.silent)


async def test_another_tenants_are_for_operators_and_a_process_without_replicas_says_so() -> None:
    gateway = await gateway_of(HeldKV({}, {}))
    async with http_client(gateway, authorization="Bearer service") as client:
        assert (await client.get("/v1/limits?tenant=beta")).status_code == 403
    async with http_client(gateway, authorization="Bearer operator") as client:
        assert (await client.get("/v1/limits?tenant=beta")).json()["limits"] is None
    async with http_client(await gateway_of(None), authorization="Bearer service") as client:
        assert (await client.get("/v1/limits")).json()["error"]["code"] == "engine_unavailable"
