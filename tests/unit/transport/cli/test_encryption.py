"""What the `encryption` commands accept, do and print."""

from __future__ import annotations

import pytest

from persistence.memory.store import MemoryStore
from sessions.governance.journal_encryption import (
    EncryptionAction,
    EncryptionChange,
    EncryptionStatus,
    TenantEncryption,
)
from sessions.model.errors import BadInput
from sessions.model.types import TenantId, UnixMs
from transport.cli.encryption import (
    DestroyKeys,
    EncryptionCommand,
    RewrapKeys,
    RotateKeys,
    ShowEncryption,
    StopSweep,
    format_encryption,
    run_on_journal,
)
from transport.cli.settings import BadSetting


class Encryption:
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


async def test_commands_act_and_are_audited() -> None:
    store, encryption = MemoryStore(), Encryption()
    await store.open()
    commands: list[EncryptionCommand] = [RotateKeys(tenant="acme"), RotateKeys(), RewrapKeys(), StopSweep()]
    texts = []
    for command in commands:
        texts.append(format_encryption(command, await run_on_journal(encryption, store, command, UnixMs(1))))
    assert encryption.calls == [("rotate", "acme"), ("rotate", None), ("rewrap", None), ("stop", None)]
    assert texts[0] == "rotate: 3 keys" and texts[2] == "rewrap: 3 keys; 1 cannot be unwrapped"
    assert len(await store.audit.rows(TenantId(""), after=0, limit=10)) == 4
    shown = await run_on_journal(encryption, store, ShowEncryption(), UnixMs(1))
    text = format_encryption(ShowEncryption(), shown)
    assert "is stopped" in text and text.splitlines()[-1].split() == ["acme", "2", "1", "-", "7", "-"]
    assert '"acme"' in format_encryption(ShowEncryption(as_json=True), shown)
    await store.close()


async def test_nobody_destroys_everything_by_leaving_a_name_out() -> None:
    store, encryption = MemoryStore(), Encryption()
    await store.open()
    with pytest.raises(BadSetting):
        await run_on_journal(encryption, store, DestroyKeys(tenant=""), UnixMs(1))
    with pytest.raises(BadInput):
        await run_on_journal(None, store, RotateKeys(), UnixMs(1))
    assert encryption.calls == []
    await store.close()
