"""`/v1/keys`: who may make, see and revoke which keys."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from persistence.memory.store import MemoryStore
from sessions.model.api_keys import ApiKeyRequest
from sessions.model.types import SCOPES, UnixMs
from tests.support.doors.transport import gateway_over, http_client, memory_sessions
from transport.auth.api_key_cache import ApiKeyCache
from transport.auth.authenticator import Authenticator
from transport.gateway import GatewayServices


class World:
    def __init__(self, client: httpx.AsyncClient, keys: ApiKeyCache) -> None:
        self.client = client
        self.keys = keys

    async def bearer(self, **fields: object) -> dict[str, str]:
        _, written = await self.keys.create(ApiKeyRequest(**{"scopes": SCOPES, **fields}))  # type: ignore[arg-type]
        return {"authorization": f"Bearer {written}"}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    sessions = await memory_sessions()
    store, clock = MemoryStore(journal=sessions.journal), lambda: 0.0
    keys = ApiKeyCache(store.api_keys, now_ms=lambda: UnixMs(1), clock=clock)
    await keys.refresh()
    access = Authenticator({}, clock=clock, now_ms=lambda: UnixMs(1), ring=keys)
    async with http_client(gateway_over(sessions, access, services=GatewayServices(keys=keys))) as client:
        yield World(client, keys)


async def test_a_service_administers_its_own_tenant(world: World) -> None:
    service = await world.bearer(tenant="acme", role="service")
    made = await world.client.post("/v1/keys", json={"user": "ana", "name": "n"}, headers=service)
    assert made.status_code == 201 and made.headers["cache-control"] == "no-store"
    body = made.json()
    assert (body["tenant"], body["user"], body["state"]) == ("acme", "ana", "active") and body["key"].startswith("sk-")
    shown = (await world.client.get(f"/v1/keys/{body['id']}", headers=service)).json()
    assert shown["id"] == body["id"] and "key" not in shown
    revoked = (await world.client.delete(f"/v1/keys/{body['id']}", headers=service)).json()
    assert revoked["state"] == "revoked"
    above = await world.client.post("/v1/keys", json={"role": "operator"}, headers=service)
    assert above.status_code == 403


async def test_another_tenants_key_is_like_none_at_all(world: World) -> None:
    acme, beta = [await world.bearer(tenant=name, role="service") for name in ("acme", "beta")]
    (key,) = [key for key in world.keys.all() if key.tenant == "acme"]
    assert (await world.client.get(f"/v1/keys/{key.id}", headers=acme)).status_code == 200
    assert (await world.client.get(f"/v1/keys/{key.id}", headers=beta)).status_code == 404
    operator = await world.bearer(tenant="ops", role="operator")
    assert (await world.client.get(f"/v1/keys/{key.id}", headers=operator)).status_code == 200


async def test_lists_are_pages_of_ones_own_or_of_all(world: World) -> None:
    service = await world.bearer(tenant="acme", role="service")
    await world.bearer(tenant="beta", scopes=None)
    operator = await world.bearer(tenant="ops", role="operator")
    assert len((await world.client.get("/v1/keys", headers=service)).json()["data"]) == 1
    first = (await world.client.get("/v1/keys?limit=2", headers=operator)).json()
    assert first["has_more"]
    rest = (await world.client.get(f"/v1/keys?after={first['last_id']}", headers=operator)).json()
    assert len(rest["data"]) == 1
    assert (await world.client.get("/v1/keys?after=nothing", headers=operator)).status_code == 404


async def test_a_server_without_keys_says_so() -> None:
    async with http_client(gateway_over(await memory_sessions())) as client:
        assert (await client.get("/v1/keys")).json()["error"]["code"] == "journal_unavailable"
