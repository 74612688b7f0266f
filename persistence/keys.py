"""Key stores: one data key per session, wrapped by the master key, kept apart from what it encrypts.

Destroying a key is what makes bytes unreadable wherever a copy of them may lie: KV that was spilled, Redis, a backup.
So a store is a database of its own (`key_database.py`).

A row belongs to (session, master): replicas with masters of their own may share a store and never see each other's
keys, and a master that was replaced means new keys, never an error. Destroying takes the rows of all masters. Nothing
here caches: a key that was destroyed by one process is gone for all at once.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final
from uuid import uuid4

import msgspec

from persistence.key_database import KeyDatabase, SqliteKeyDatabase
from persistence.master_key import KEY_BYTES, MasterKey, MasterKeyRing
from sessions.model.types import SessionKey
from sessions.ports import DataKey

_FIND: Final = "SELECT master, id, wrapped FROM {data_keys} WHERE tenant = $1 AND session = $2"
_INSERT: Final = (
    "INSERT INTO {data_keys} (tenant, session, master, id, wrapped) VALUES ($1, $2, $3, $4, $5)"
    " ON CONFLICT (tenant, session, master) DO NOTHING"
)
_DESTROY: Final = "DELETE FROM {data_keys} WHERE tenant = $1 AND session = $2"
_OF_MASTER: Final = "SELECT tenant, session, id, wrapped FROM {data_keys} WHERE master = $1 LIMIT $2"
_REPLACE: Final = (
    "UPDATE {data_keys} SET master = $4, wrapped = $5 WHERE tenant = $1 AND session = $2 AND master = $3"
    " AND NOT EXISTS (SELECT 1 FROM {data_keys} WHERE tenant = $1 AND session = $2 AND master = $4)"
)
_DELETE: Final = "DELETE FROM {data_keys} WHERE tenant = $1 AND session = $2 AND master = $3"
REWRAP_ROWS: Final = 500


def _associated_data(key: SessionKey, name: str) -> bytes:
    return msgspec.msgpack.encode((key.tenant, key.session, name))


class MemoryKeyStore:
    """A key store in memory, for a journal in memory and for tests. Its keys are gone with the process."""

    def __init__(self) -> None:
        self._keys: dict[SessionKey, DataKey] = {}

    async def open(self) -> None:
        return

    async def close(self) -> None:
        return

    async def current(self, key: SessionKey) -> DataKey:
        return self._keys.setdefault(key, DataKey(uuid4().hex, os.urandom(KEY_BYTES)))

    async def find(self, key: SessionKey, key_id: str) -> DataKey | None:
        data_key = self._keys.get(key)
        return data_key if data_key is not None and data_key.id == key_id else None

    async def destroy(self, key: SessionKey) -> None:
        self._keys.pop(key, None)

    async def rewrap(self) -> int:
        return 0


class SqlKeyStore:
    """The port `Keys` on a database that holds only keys."""

    def __init__(self, database: KeyDatabase, masters: MasterKeyRing) -> None:
        self.database = database
        self.masters = masters

    async def open(self) -> None:
        """Opens the database of keys. Raises Unavailable."""
        await self.database.open()

    async def close(self) -> None:
        await self.database.close()

    async def current(self, key: SessionKey) -> DataKey:
        data_key = await self._find(key)
        while data_key is None:
            # A row that this master cannot unwrap was tampered with: it is replaced. One that another process has
            # just made stays, and every process uses it.
            name, master = uuid4().hex, self.masters.newest
            wrapped = master.wrap(os.urandom(KEY_BYTES), _associated_data(key, name))
            await self.database.rows(_INSERT, *key, master.id, name, wrapped)
            data_key = await self._find(key)
            if data_key is None:
                await self.destroy(key)
        return data_key

    async def find(self, key: SessionKey, key_id: str) -> DataKey | None:
        data_key = await self._find(key)
        return data_key if data_key is not None and data_key.id == key_id else None

    async def destroy(self, key: SessionKey) -> None:
        await self.database.rows(_DESTROY, *key)

    async def _find(self, key: SessionKey) -> DataKey | None:
        rows = {master: (name, wrapped) for master, name, wrapped in await self.database.rows(_FIND, *key)}
        for master in self.masters:
            if row := rows.get(master.id):
                name, wrapped = row
                secret = master.unwrap(bytes(wrapped), _associated_data(key, name))
                return None if secret is None else DataKey(name, secret)
        return None

    async def rewrap(self) -> int:
        """Wraps each key of an older master under the newest; returns how many. It may be interrupted and run again:
        each key is readable at every moment."""
        newest, done = self.masters.newest, 0
        for master in self.masters.older:
            while rows := await self.database.rows(_OF_MASTER, master.id, REWRAP_ROWS):
                for tenant, session, name, wrapped in rows:
                    key = SessionKey(tenant, session)
                    secret = master.unwrap(bytes(wrapped), _associated_data(key, name))
                    if secret is not None:
                        again = newest.wrap(secret, _associated_data(key, name))
                        await self.database.rows(_REPLACE, *key, master.id, newest.id, again)
                        done += 1
                    await self.database.rows(_DELETE, *key, master.id)  # where the newest has one of its own
        return done


class SqliteKeyStore(SqlKeyStore):
    def __init__(self, path: Path, master: MasterKey | MasterKeyRing) -> None:
        super().__init__(SqliteKeyDatabase(path), ring_of(master))


def ring_of(master: MasterKey | MasterKeyRing) -> MasterKeyRing:
    return master if isinstance(master, MasterKeyRing) else MasterKeyRing([master])
