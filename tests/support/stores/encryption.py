"""The encryption of a journal as commands and routes see it: one tenant, and a note of what was done."""

from __future__ import annotations

from sessions.governance.journal_encryption import (
    EncryptionAction,
    EncryptionChange,
    EncryptionStatus,
    TenantEncryption,
)
from sessions.model.types import TenantId


class Encryption:
    """Every action changes three keys; one key cannot be wrapped anew."""

    def __init__(self) -> None:
        self.calls: list[tuple[EncryptionAction, TenantId | None]] = []

    async def status(self) -> EncryptionStatus:
        acme = TenantEncryption(
            tenant=TenantId("acme"), keys=2, destroyed_keys=1, key_id=None, changed_rows=7, finished_at=None
        )
        return EncryptionStatus(encrypts=True, stopped=True, tenants=[acme])

    async def act(self, action: EncryptionAction, tenant: TenantId | None) -> EncryptionChange:
        self.calls.append((action, tenant))
        return EncryptionChange(changed=3, failed=1 if action == "rewrap" else 0)
