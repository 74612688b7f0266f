"""What operators do about the keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from persistence.at_rest.administration import EncryptionAdministration
from persistence.at_rest.codec import SealingCodec
from persistence.at_rest.sweep import Reencryption
from persistence.sqlite.store import SqliteStore
from sessions.model.errors import BadInput, Internal
from sessions.model.memories import MemoryId, UserMemory
from sessions.model.types import TenantId
from tests.support.stores.journals import ACME, NOW, SqliteBed, a_log, key


async def test_actions_change_keys_and_the_status_shows_it(tmp_path: Path) -> None:
    store = await SqliteBed(tmp_path, sealed=True).open()
    assert isinstance(store, SqliteStore) and isinstance(store.database.codec, SealingCodec)
    codec = store.database.codec
    sweep = Reencryption(store.database, codec, now_ms=lambda: NOW, settle_s=0)

    async def rewrap_kv() -> int:
        return 5

    forgotten = []

    async def forget_tools(tenant: TenantId) -> None:
        forgotten.append(tenant)

    administration = EncryptionAdministration(codec, sweep, rewrap_kv, forget_tools)
    assert (await administration.status()).tenants == []
    await a_log(store.journal, "s", 2)
    await a_log(store.journal, "s", 2, tenant="globex")
    assert (await administration.act("rotate", None)).changed == 2
    assert (await administration.act("rotate", ACME)).changed == 1
    await administration.act("stop", None)
    assert (await administration.status()).stopped and not await sweep.sweep()
    await administration.act("resume", None)
    assert await sweep.sweep()
    acme, globex = (await administration.status()).tenants
    assert (acme.keys, globex.keys) == (3, 2) and acme.changed_rows == 3 and acme.finished_at == NOW
    assert (await administration.act("rewrap", None)).changed == 5  # the master is the same
    with pytest.raises(BadInput):
        await administration.act("destroy", None)
    assert (await administration.act("destroy", ACME)).changed == 3 and forgotten == [ACME]
    head = await store.journal.head(key("s"))
    assert head is not None and head.title is None, "there is a session, of which nothing can be read"
    with pytest.raises(Internal):
        await store.journal.read(key("s"), after=0, limit=10, bytes_max=1 << 20)
    assert await store.journal.head(key("s", "globex")) is not None
    await store.close()


async def test_a_user_whose_keys_were_destroyed_begins_with_new_memories(tmp_path: Path) -> None:
    store = await SqliteBed(tmp_path, sealed=True).open()
    assert isinstance(store, SqliteStore) and isinstance(store.database.codec, SealingCodec)

    def memory(name: str) -> UserMemory:
        return UserMemory(id=MemoryId(name), tenant=ACME, user="ana", text="Likes tea.", created_at=NOW, updated_at=NOW)

    await store.end_users.add_memory(memory("before"))
    await store.database.codec.keys.destroy(ACME)
    assert await store.end_users.memories(ACME, "ana") == []
    await store.end_users.add_memory(memory("since"))
    assert await store.end_users.memories(ACME, "ana") == [memory("since")]
    await store.close()
