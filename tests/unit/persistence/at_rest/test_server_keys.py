"""Keys of servers: each gateway reads what another one sealed, at the first start, while keys rotate, on each store.

Signing in, with the cookies that these keys seal, is tests/attacks/test_sign_in.py."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from persistence.at_rest.server_keys import EVERYWHERE_MS, SIGN_IN, StoredServerKeys
from persistence.at_rest.tenant_keys import TenantKeys
from persistence.at_rest.wrapping import MasterKeyWrapper
from persistence.key_database import KeyDatabase, PostgresKeyDatabase, SqliteKeyDatabase
from persistence.master_key import MasterKeyRing
from sessions.model.errors import Unavailable
from sessions.model.types import UnixMs
from tests.support.stores.journals import MASTER, NOW, postgres
from transport.auth.sealed_cookies import CookieSealer

ON_EVERY_STORE = pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.cluster)])


class Content(msgspec.Struct, frozen=True):
    text: str


class Gateway:
    """A process on a key store, with what seals its cookies, and a clock of its own."""

    def __init__(self, database: KeyDatabase) -> None:
        self.ms = int(NOW)
        self.database = database
        self.keys = TenantKeys(database, MasterKeyWrapper(MasterKeyRing([MASTER])), now_ms=self.now_ms)
        self.server_keys = StoredServerKeys(self.keys, self.now_ms)
        self.sealer = CookieSealer(self.server_keys, "https://chat.example")

    def now_ms(self) -> UnixMs:
        return UnixMs(self.ms)

    def sealed(self, text: str) -> str:
        written = self.sealer.seal("session", Content(text))
        assert written is not None
        return written

    def opened(self, written: str) -> str | None:
        content = self.sealer.open("session", written, Content)
        return None if content is None else content.text


async def two_gateways(kind: str, folder: Path, schema: str) -> tuple[Gateway, Gateway]:
    made = []
    for _ in range(2):
        database = (
            SqliteKeyDatabase(folder / "keys.db")
            if kind == "sqlite"
            else PostgresKeyDatabase(postgres().dsn, schema=schema)
        )
        await database.open()
        made.append(Gateway(database))
    return made[0], made[1]


@ON_EVERY_STORE
async def test_gateways_that_start_at_once_have_one_key(kind: str, tmp_path: Path) -> None:
    one, other = await two_gateways(kind, tmp_path, "server_keys_start")
    with pytest.raises(Unavailable):
        one.server_keys.writing()
    await asyncio.gather(one.server_keys.load(), other.server_keys.load())
    assert one.server_keys.writing() == other.server_keys.writing()
    assert other.opened(one.sealed("ana")) == "ana" and one.opened(other.sealed("ben")) == "ben"
    await one.database.close()
    await other.database.close()


@ON_EVERY_STORE
async def test_nobody_is_signed_out_while_keys_rotate(kind: str, tmp_path: Path) -> None:
    """A cookie under a key that one gateway has just made was unknown at the others for ten seconds."""
    one, other = await two_gateways(kind, tmp_path, "server_keys_rotate")
    await one.server_keys.load()
    await other.server_keys.load()
    one.ms = other.ms = NOW + EVERYWHERE_MS
    before = one.sealed("before")
    new = await one.keys.rotate(SIGN_IN)
    assert other.opened(one.sealed("just now")) == "just now"  # which has not read the keys again
    await other.keys.refresh()
    one.ms = other.ms = NOW + 2 * EVERYWHERE_MS
    assert one.server_keys.writing() == (new.id, new.secret)
    assert other.opened(one.sealed("later")) == "later" and other.opened(before) == "before"
    await one.database.close()
    await other.database.close()
