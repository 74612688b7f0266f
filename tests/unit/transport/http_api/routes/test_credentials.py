"""`GET /v1/me`: everybody learns who they are, and whether operators' pages are theirs."""

from __future__ import annotations

import pytest

from sessions.model.types import Principal, Scope, TenantId, UnixMs
from tests.support.doors.transport import gateway_over, http_client, memory_sessions
from transport.auth.authenticator import Authenticator, key_digest
from transport.gateway import Gateway

ACME = TenantId("acme")
KEYS = {
    key_digest("operator"): Principal(tenant=ACME, key_id="k1", role="operator", scopes=("admin",)),
    key_digest("reader"): Principal(tenant=ACME, key_id="k2", role="operator", scopes=("read",)),
    key_digest("service"): Principal(tenant=ACME, key_id="k3", role="service", scopes=("chat", "admin")),
    key_digest("user"): Principal(tenant=ACME, key_id="k4", user="ann"),
}


async def gateway_with_keys() -> Gateway:
    access = Authenticator(KEYS, clock=lambda: 0.0, now_ms=lambda: UnixMs(1))
    return gateway_over(await memory_sessions(), access)


@pytest.mark.parametrize(
    ("key", "user", "role", "scopes", "operator"),
    [
        ("operator", None, "operator", ["admin"], True),
        ("reader", None, "operator", ["read"], False),
        ("service", None, "service", ["chat", "admin"], False),
        ("user", "ann", "user", None, False),
    ],
)
async def test_me_names_the_tenant_user_and_role_of_the_key(
    key: str, user: str | None, role: str, scopes: list[Scope] | None, operator: bool
) -> None:
    gateway = await gateway_with_keys()
    async with http_client(gateway, authorization=f"Bearer {key}") as client:
        shown = (await client.get("/v1/me")).json()
    assert (shown["object"], shown["tenant"], shown["user"]) == ("principal", "acme", user)
    assert (shown["role"], shown["operator"]) == (role, operator)
    assert scopes is None or shown["scopes"] == scopes


async def test_me_answers_only_a_good_key() -> None:
    gateway = await gateway_with_keys()
    async with http_client(gateway) as client:
        assert (await client.get("/v1/me")).status_code == 401


async def test_who_could_not_upgrade_learns_that_the_server_is_there_and_whether_it_lets_anybody_in() -> None:
    gateway = await gateway_with_keys()
    async with http_client(gateway) as client:
        answer = await client.get("/v1/ws", headers={"x-request-id": "sdk-42"})
        assert (answer.status_code, answer.headers["upgrade"], answer.headers["x-request-id"]) == (
            426,
            "websocket",
            "sdk-42",
        )
        assert answer.json()["error"]["code"] == "upgrade_required"
        gateway.draining = True
        answer = await client.get("/v1/ws")
        assert (answer.status_code, answer.headers["retry-after-ms"]) == (503, "1000")
        assert answer.json()["error"]["code"] == "draining"


async def test_a_server_without_keys_says_so() -> None:
    async with http_client(gateway_over(await memory_sessions())) as client:
        assert (await client.get("/v1/keys")).json()["error"]["code"] == "journal_unavailable"
