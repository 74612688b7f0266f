"""The databases behind the index: transactions that stand whole or not at all, and what is said when one is away."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from persistence.passages.databases import PostgresPassages, SqlitePassages
from persistence.sql.script import Query, Script, one_query
from sessions.model.errors import BadInput, Unavailable

INSERT = (
    "INSERT INTO stores (tenant, id, end_user, model, dimensions, created_at, key_id, body)"
    " VALUES ($1, $2, '', 'm', 3, 1, '', x'00')"
)


async def test_a_script_stands_whole_or_not_at_all(tmp_path: Path) -> None:
    database = SqlitePassages(tmp_path / "passages.db")
    await database.open()

    def broken() -> Script[None]:
        yield Query(INSERT, ("acme", "a"))
        raise BadInput("invalid_request", "no")

    with pytest.raises(BadInput):
        await database.run(broken)
    assert await database.rows("SELECT id FROM stores") == []
    await database.run(lambda: one_query(INSERT, ("acme", "b")))
    with pytest.raises(Unavailable, match="IntegrityError"):
        await database.run(lambda: one_query(INSERT, ("acme", "b")))
    assert await database.rows("SELECT id FROM stores WHERE tenant = $1", ("acme",)) == [("b",)]
    many = await asyncio.gather(*(database.rows("SELECT count(*) FROM stores") for _ in range(9)))
    assert many == [[(1,)]] * 9
    await database.close()
    with pytest.raises(Unavailable):
        await database.rows("SELECT 1")
    again = SqlitePassages(tmp_path / "passages.db")
    await again.open()
    assert await again.rows("SELECT id FROM stores") == [("b",)]
    await again.close()


async def test_extensions_can_be_loaded_by_no_statement(tmp_path: Path) -> None:
    database = SqlitePassages(None)
    await database.open()
    with pytest.raises(Unavailable):
        await database.rows("SELECT load_extension($1)", ("libm.so.6",))
    await database.close()


async def test_a_server_that_is_not_there_says_so() -> None:
    database = PostgresPassages("postgresql://127.0.0.1:1/none")
    with pytest.raises(Unavailable, match="do not answer"):
        await database.open()
    work: Any = database.rows("SELECT 1")
    with pytest.raises(Unavailable):
        await work
    await database.close()


async def test_a_cancelled_read_of_a_stopped_server_ends_its_connection_before_giving_it_back() -> None:
    class StoppedConnection:
        def __init__(self) -> None:
            self.terminated = asyncio.Event()
            self.asked = asyncio.Event()

        async def fetch(self, *_: object) -> list[Any]:
            self.asked.set()
            await asyncio.Event().wait()
            return []

        def terminate(self) -> None:
            self.terminated.set()

    class Pool:
        async def acquire(self, *, timeout: float) -> StoppedConnection:
            return connection

        async def release(self, given_back: StoppedConnection) -> None:
            await given_back.terminated.wait()  # as asyncpg's waits for the server's answer to a cancelled query

    connection = StoppedConnection()
    database = PostgresPassages("postgresql://127.0.0.1:1/none")
    database._pool = Pool()
    reading = asyncio.create_task(database.rows("SELECT 1"))
    async with asyncio.timeout(60):
        await connection.asked.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
    assert connection.terminated.is_set()


@pytest.mark.parametrize("in_a_file", [True, False])
async def test_cancelled_reads_leave_the_line_and_later_ones_are_answered(tmp_path: Path, in_a_file: bool) -> None:
    database = SqlitePassages(tmp_path / "passages.db" if in_a_file else None)
    await database.open()
    waiting, held = asyncio.get_running_loop(), threading.Event()
    entered, executed = asyncio.Semaphore(0), list[str]()
    plain = database._execute

    def execute(connection: Any, text: str, values: Any) -> list[Any]:
        executed.append(text)
        if text == "SELECT 'slow'":
            waiting.call_soon_threadsafe(entered.release)
            assert held.wait(60)
        return plain(connection, text, values)

    database._execute = execute  # type: ignore[method-assign]
    slow = [asyncio.create_task(database.rows("SELECT 'slow'")) for _ in range(2 if in_a_file else 1)]
    async with asyncio.timeout(60):
        for _ in slow:
            await entered.acquire()
    behind = [asyncio.create_task(database.rows("SELECT 'behind'")) for _ in range(3)]
    for _ in range(3):
        await asyncio.sleep(0)
    for task in (*behind, slow[0]):
        task.cancel()
    await asyncio.gather(*behind, return_exceptions=True)
    held.set()
    async with asyncio.timeout(60):
        outcomes = await asyncio.gather(*slow, return_exceptions=True)
        assert isinstance(outcomes[0], asyncio.CancelledError)
        assert await asyncio.gather(*(database.rows("SELECT 1") for _ in range(5))) == [[(1,)]] * 5
    assert "SELECT 'behind'" not in executed
    await database.close()
