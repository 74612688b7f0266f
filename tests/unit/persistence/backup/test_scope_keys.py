"""Keys of sessions and users: found again, in pages, and gone when they are destroyed."""

from __future__ import annotations

from pathlib import Path

import pytest

from persistence.backup import scope_keys
from persistence.backup.scope_keys import KeyScope, ScopeKeys, decode_page, session_scope, user_scope
from persistence.key_database import SqliteKeyDatabase
from tests.support.stores.journals import NOW, a_codec

NONCE = b"n" * 12


async def keys_in(folder: Path) -> tuple[SqliteKeyDatabase, ScopeKeys]:
    database = SqliteKeyDatabase(folder / "keys.db")
    codec = await a_codec(database)
    return database, ScopeKeys(database, codec.keys, now_ms=lambda: NOW)


async def test_a_scope_has_one_key_for_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scope_keys, "PAGE_KEYS", 4)
    scopes = [session_scope("t", f"s{number}") for number in range(9)] + [user_scope("u", "ana")]
    database, keys = await keys_in(tmp_path)
    made = await keys.of_scopes(scopes)
    assert len({key.id for key in made.values()}) == 10 and {key.page for key in made.values()} == {1, 2, 3}
    sealed = {scope: key.cipher.encrypt(NONCE, scope.name.encode(), None) for scope, key in made.items()}
    assert await keys.pages_to_store() == [1, 2, 3]
    for page in (1, 2, 3):
        assert len(decode_page(await keys.page(page))) in (2, 4)
        await keys.page_stored(page)
    await database.close()
    database, keys = await keys_in(tmp_path)
    again = await keys.of_scopes(scopes)
    for scope, key in again.items():
        assert key.cipher.decrypt(NONCE, sealed[scope], None).decode() == scope.name
    assert await keys.pages_to_store() == []
    assert await keys.destroy([scopes[4], KeyScope("t", "s/none")]) == 1
    assert await keys.pages_to_store() == [2]
    entries = decode_page(await keys.page(2))
    assert [entry.wrapped for entry in entries if entry.destroyed_at is not None] == [b""]
    fresh = (await keys.of_scopes([scopes[4]]))[scopes[4]]
    assert fresh.id != again[scopes[4]].id, "who comes again has another key"
    await database.close()
