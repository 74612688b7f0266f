"""The database behind the index, on PostgreSQL: a pool of connections."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

import asyncpg

from persistence.passages.dialects import PostgresDialect, passages_unavailable
from persistence.postgres.connection import PooledConnection, terminate
from persistence.sql.script import Query, Script

T = TypeVar("T")

SCHEMA: Final = "sessile_passages"
CONNECTIONS: Final = 4
TIMEOUT_S: Final = 30.0
_LOCK: Final = 0x70617373  # held by the process that makes the tables


class PostgresPassages:
    """A schema of the journal's PostgreSQL database, with the extension `vector`."""

    dialect = PostgresDialect()

    def __init__(self, dsn: str, schema: str = SCHEMA) -> None:
        self._dsn = dsn
        self._schema = schema
        self._pool: Any = None

    async def open(self) -> None:
        try:
            self._pool = await asyncpg.create_pool(
                self._dsn,
                min_size=1,
                max_size=CONNECTIONS,
                connection_class=PooledConnection,
                timeout=TIMEOUT_S,
                command_timeout=TIMEOUT_S,
                server_settings={
                    "application_name": "sessile",
                    "search_path": f'"{self._schema}", public',
                    "statement_timeout": str(int(TIMEOUT_S * 1000)),
                    "jit": "off",
                },
            )
            async with self._pool.acquire() as connection, connection.transaction():
                await connection.execute(f"SELECT pg_advisory_xact_lock({_LOCK})")
                await connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{self._schema}"')
                await connection.execute("CREATE EXTENSION IF NOT EXISTS vector SCHEMA public")
                await connection.execute(self.dialect.tables())
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as exc:
            await self.close()
            raise passages_unavailable(exc) from exc

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    await pool.close()
            except TimeoutError:
                pool.terminate()

    async def run(self, script: Callable[[], Script[T]]) -> T:
        async def work(connection: Any) -> T:
            async with connection.transaction():
                steps, rows = script(), None
                while True:
                    try:
                        step = steps.send(rows)  # type: ignore[arg-type]
                    except StopIteration as done:
                        result: T = done.value
                        return result
                    assert isinstance(step, Query)
                    rows = [tuple(row) for row in await connection.fetch(step.text, *step.values)]

        return await self._with(work)

    async def rows(self, text: str, values: Sequence[Any] = ()) -> list[Any]:
        async def work(connection: Any) -> list[Any]:
            return [tuple(row) for row in await connection.fetch(text, *values)]

        return await self._with(work)

    async def _with(self, work: Callable[[Any], Awaitable[T]]) -> T:
        if self._pool is None:
            raise passages_unavailable(ConnectionError())
        try:
            connection = await self._pool.acquire(timeout=TIMEOUT_S)
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as exc:
            raise passages_unavailable(exc) from exc
        try:
            return await work(connection)
        except asyncio.CancelledError:  # a server that has stopped would keep its release waiting
            terminate(connection)
            raise
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as exc:
            terminate(connection)
            raise passages_unavailable(exc) from exc
        finally:
            await self._pool.release(connection)
