"""Key stores in PostgreSQL: a schema of their own, which a cluster's processes share."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg

from persistence.key_database import NAME, TABLES, keys_unavailable
from persistence.keys import SqlKeyStore, ring_of
from persistence.master_key import MasterKey, MasterKeyRing
from sessions.model.errors import Unavailable


class PostgresKeyDatabase:
    """A PostgreSQL schema for keys only, which a cluster's processes share."""

    def __init__(self, dsn: str, *, schema: str = "sessile_keys", timeout_s: float = 10.0) -> None:
        self._dsn = dsn
        self._schema = schema
        self._timeout_s = timeout_s
        self._pool: Any = None

    def has_file(self) -> bool:
        return False

    async def open(self) -> None:
        try:
            self._pool = await asyncpg.create_pool(
                self._dsn, min_size=0, max_size=4, command_timeout=self._timeout_s, timeout=self._timeout_s
            )
            async with self._pool.acquire() as connection, connection.transaction():
                await connection.execute("SELECT pg_advisory_xact_lock(hashtext($1))", self._schema)
                await connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{self._schema}"')
                for table in TABLES:
                    await connection.execute(self._qualified(table.format(bytes="BYTEA")))
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError) as exc:
            await self.close()
            raise keys_unavailable(exc) from exc

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            try:
                await asyncio.wait_for(pool.close(), self._timeout_s)
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError):
                pool.terminate()

    async def rows(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        if self._pool is None:
            raise Unavailable("keys_unavailable", "The key store is not open.")
        try:
            return [tuple(row) for row in await self._pool.fetch(self._qualified(statement), *values)]
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError) as exc:
            raise keys_unavailable(exc) from exc

    async def wipe(self, table: str) -> None:
        await self.rows(f"VACUUM (FULL) {{{table}}}")

    def _qualified(self, statement: str) -> str:
        return NAME.sub(lambda found: f'"{self._schema}".{found[1]}', statement)


class PostgresKeyStore(SqlKeyStore):
    """A key store for a cluster: replicas with the same master key read what each of them encrypted."""

    def __init__(
        self, dsn: str, master: MasterKey | MasterKeyRing, *, schema: str = "sessile_keys", timeout_s: float = 10.0
    ) -> None:
        super().__init__(PostgresKeyDatabase(dsn, schema=schema, timeout_s=timeout_s), ring_of(master))
