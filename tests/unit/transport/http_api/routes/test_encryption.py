"""`/v1/operator/encryption`: for operators, audited before it is done."""

from __future__ import annotations

from sessions.governance.journal_encryption import (
    EncryptionAction,
    EncryptionChange,
    EncryptionStatus,
    TenantEncryption,
)
from sessions.model.audit import INSTALLATION, public
from sessions.model.types import SCOPES, Principal, TenantId, UnixMs
from tests.support.doors.transport import gateway_over, http_client, memory_sessions
from transport.auth.authenticator import Authenticator, key_digest
from transport.gateway import Gateway, GatewayServices

PLACE = "/v1/operator/encryption"
KEYS = {
    key_digest(role): Principal(tenant=TenantId("ops"), key_id=role, role=role, scopes=SCOPES)
    for role in ("service", "operator")
}
ACME = TenantEncryption(
    tenant=TenantId("acme"), keys=2, destroyed_keys=0, key_id="k", changed_rows=7, finished_at=UnixMs(5)
)


class Encryption:
    def __init__(self) -> None:
        self.calls: list[tuple[EncryptionAction, TenantId | None]] = []

    async def status(self) -> EncryptionStatus:
        return EncryptionStatus(encrypts=True, stopped=False, tenants=[ACME])

    async def act(self, action: EncryptionAction, tenant: TenantId | None) -> EncryptionChange:
        self.calls.append((action, tenant))
        return EncryptionChange(changed=1)


async def a_gateway(encryption: Encryption | None) -> Gateway:
    access = Authenticator(KEYS, clock=lambda: 0.0, now_ms=lambda: UnixMs(1))
    return gateway_over(await memory_sessions(), access, services=GatewayServices(encryption=encryption))


async def test_operators_see_and_change_keys_and_it_is_audited() -> None:
    encryption = Encryption()
    gateway = await a_gateway(encryption)
    async with http_client(gateway, authorization="Bearer service") as client:
        assert (await client.get(PLACE)).status_code == 403
        assert (await client.post(PLACE, json={"action": "destroy", "tenant": "acme"})).status_code == 403
    async with http_client(gateway, authorization="Bearer operator") as client:
        shown = (await client.get(PLACE)).json()
        assert shown["encrypts"] and shown["tenants"][0]["changed_rows"] == 7
        assert (await client.post(PLACE, json={"action": "rotate"})).json()["changed"] == 1
        assert (await client.post(PLACE, json={"action": "destroy", "tenant": "acme"})).status_code == 200
        for wrong in ({}, {"action": "burn"}, {"action": "rotate", "tenant": ""}):
            assert (await client.post(PLACE, json=wrong)).status_code == 400
    assert encryption.calls == [("rotate", None), ("destroy", "acme")]
    rows = [public(row) for row in await gateway.store.audit.rows(INSTALLATION, after=0, limit=10)]
    details = [row["detail"] for row in rows if row["action"] == "encryption.changed"]
    assert details == [{"action": "rotate", "tenant": None}, {"action": "destroy", "tenant": "acme"}]


async def test_a_plain_journal_says_so() -> None:
    async with http_client(await a_gateway(None), authorization="Bearer operator") as client:
        answer = await client.get(PLACE)
        assert answer.status_code == 400 and "not encrypted" in answer.json()["error"]["message"]
