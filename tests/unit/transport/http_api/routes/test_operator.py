"""`/v1/operator`: for operators; what they do is audited before it is done."""

from __future__ import annotations

from typing import Any

import pytest

from actors.peer.frames import Measured
from actors.peer.links import LinkDown
from sessions.load_history import LoadSample
from sessions.model.audit import INSTALLATION, public
from sessions.model.types import SCOPES, Principal, SessionKey, TenantId, UnixMs
from sessions.service_totals import ServiceTotals
from tests.support.doors.transport import gateway_over, http_client, memory_sessions
from transport.auth.authenticator import Authenticator, key_digest
from transport.gateway import Gateway, GatewayServices
from transport.ops.operator_requests import SessionPage, SessionQuery

KEYS = {
    key_digest(role): Principal(tenant=TenantId("ops"), key_id=role, role=role, scopes=SCOPES)
    for role in ("service", "operator")
}


class Replicas:
    """An operator API that notes what it was called with."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    async def replicas(self) -> list[dict[str, Any]]:
        return [{"replica": "r1"}]

    async def sessions(self, query: SessionQuery) -> SessionPage:
        self.calls.append(query)
        return SessionPage([], 0, False, {"r2": "no answer"})

    async def measure(self, replica: str = "", *, after: int = 0, step_s: int = 0) -> dict[str, Measured | LinkDown]:
        self.calls.append((replica, after, step_s))
        sample = LoadSample(after + 600, 10.0, (0, 2), 40.0, 20.0, 1.0, 0.0, 0.0, 2, 1, 4, 3, {"host": 5.0})
        totals = ServiceTotals(met=3, missed=1, ended={"stop": 4.0})
        return {"r1": Measured(0, 3, totals, (sample,) if step_s else ()), "r2": LinkDown("keepalive", "no answer")}

    async def drain(self, replica: str) -> None:
        self.calls.append(replica)

    async def undrain(self, replica: str) -> None:
        self.calls.append(replica)

    async def hand_off(self, replica: str, key: SessionKey, to: str) -> str:
        self.calls.append((replica, key, to))
        return "r2"


@pytest.fixture
async def replicas() -> Replicas:
    return Replicas()


@pytest.fixture
async def gateway(replicas: Replicas) -> Gateway:
    access = Authenticator(KEYS, clock=lambda: 0.0, now_ms=lambda: UnixMs(1))
    operator_api: Any = replicas
    services = GatewayServices(operator_api=operator_api)
    return gateway_over(await memory_sessions(), access, services=services)


async def test_only_operators_see_it(gateway: Gateway) -> None:
    async with http_client(gateway, authorization="Bearer service") as client:
        assert (await client.get("/v1/operator/overview")).status_code == 403
    async with http_client(gateway, authorization="Bearer operator") as client:
        overview = (await client.get("/v1/operator/overview")).json()
        assert overview["version"] == "1"
        assert overview["health"]["in_target"] == 0.75 and overview["health"]["answers"] == 4
        assert overview["replicas"] == [{"replica": "r1", "sessions": 3}]
        assert overview["silent"] == {"r2": "keepalive: no answer"}


async def test_series_are_of_the_time_and_the_replica_that_were_requested(gateway: Gateway, replicas: Replicas) -> None:
    async with http_client(gateway, authorization="Bearer operator") as client:
        series = (await client.get("/v1/operator/series?range_s=600&replica=r1")).json()
        assert (series["step_s"], len(series["at"])) == (10, 60)
        assert replicas.calls == [("r1", series["at"][0] - 10, 10)] == [("r1", series["at"][-1] - 600, 10)]
        assert series["tokens_per_s"]["decoded"][-2:] == [None, 2.0]
        assert series["silent"] == {"r2": "keepalive: no answer"}
        assert (await client.get("/v1/operator/series?range_s=86400")).status_code == 400
    async with http_client(gateway, authorization="Bearer service") as client:
        assert (await client.get("/v1/operator/series")).status_code == 403


async def test_actions_are_audited(gateway: Gateway, replicas: Replicas) -> None:
    async with http_client(gateway, authorization="Bearer operator") as client:
        assert (await client.post("/v1/operator/replicas/r1/drain")).status_code == 202
        assert (await client.post("/v1/operator/replicas/r1/undrain")).status_code == 200
        moved = await client.post("/v1/operator/sessions/acme/s/handoff", json={"replica": "r1"})
        assert moved.json()["replica"] == "r2"
    actions = [
        public(row)["action"]
        for tenant in (INSTALLATION, TenantId("acme"))
        for row in await gateway.store.audit.rows(tenant, after=0, limit=9)
    ]
    assert (
        actions == ["replica.drain_asked", "replica.undrain_asked", "session.hand_off_asked"]
        and len(replicas.calls) == 3
    )
