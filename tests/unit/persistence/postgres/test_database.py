"""Connections to a PostgreSQL that is killed, stands still or goes back in time; many processes on one store."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from persistence.postgres.database import PostgresDatabase
from persistence.postgres.journal import PostgresJournal
from sessions.model.errors import Fenced, OutcomeUnknown, Unavailable
from sessions.model.journal_types import Head
from testbed.chaos.proxy import Flow, Proxy
from testbed.postgres_server import PostgresServer
from tests.support.stores.postgres_stores import by_hand, grant, opened_at
from tests.support.stores.stores import NOW, append, delta, key, top_of

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def own() -> Iterator[PostgresServer]:
    made = PostgresServer()
    made.start()
    yield made
    made.remove()


@pytest.fixture
def server(own: PostgresServer) -> PostgresServer:
    """One that these tests may kill."""
    return own


async def until_stored(journal: PostgresJournal, head: Head, top: int) -> int:
    """Appends one record, however often that takes, as an owner does: after every failure it reads first."""
    while True:
        try:
            await append(journal, head, top)
            return top + 1
        except Unavailable:
            while True:
                try:
                    stored = await top_of(journal, head.key.session)
                    break
                except Unavailable:
                    await asyncio.sleep(0)
            assert stored in (top, top + 1)
            if stored == top + 1:
                return stored


async def test_what_does_not_mend_by_itself_is_not_waited_for(server: PostgresServer, schema: str) -> None:
    stranger = server.dsn.replace("postgres@", "nobody_of_that_name@")
    for dsn in ("postgresql://user@127.0.0.1:no-port/db", stranger):
        with pytest.raises(Unavailable) as caught:
            await PostgresDatabase(dsn, schema=schema).open()
        assert caught.value.code == "journal_unusable" and not caught.value.retryable


async def test_an_ordinary_role_is_enough(server: PostgresServer, schema: str) -> None:
    async with by_hand(server, schema) as connection:
        await connection.execute(f"CREATE ROLE {schema} LOGIN")
        await connection.execute(f"GRANT CREATE ON DATABASE postgres TO {schema}")
    dsn = server.dsn.replace("postgres@", f"{schema}@")
    async with opened_at(dsn, schema) as journal:
        await append(journal, await grant(journal), 0)
        assert await top_of(journal) == 1


async def test_the_database_must_not_lie_about_durability(server: PostgresServer, schema: str) -> None:
    """A server's or a role's default of `synchronous_commit = off` is overruled on every connection."""
    async with by_hand(server, schema) as connection:
        await connection.execute("ALTER ROLE postgres SET synchronous_commit = off")
    try:
        async with opened_at(server.dsn, schema) as journal:
            assert journal.database._writer is not None
            assert await journal.database._writer.fetchval("SHOW synchronous_commit") == "on"
            async with journal.database.connection() as pooled:
                assert await pooled.fetchval("SHOW synchronous_commit") == "on"
    finally:
        async with by_hand(server, schema) as connection:
            await connection.execute("ALTER ROLE postgres RESET synchronous_commit")


async def test_of_two_replicas_that_both_believe_one_writes(server: PostgresServer, schema: str) -> None:
    """Both append to the same sessions at the same tops, many rounds: each record has one author."""
    async with opened_at(server.dsn, schema) as one, opened_at(server.dsn, schema) as two:
        heads = [await grant(one, f"s{n}") for n in range(20)]
        tops = [0] * 20
        for _ in range(10):
            results = await asyncio.gather(
                *(append(journal, h, tops[n], text=name)
                  for journal, name in ((one, "one"), (two, "two")) for n, h in enumerate(heads)),
                return_exceptions=True,
            )  # fmt: skip
            for n in range(20):
                outcomes = [results[n], results[20 + n]]
                assert outcomes.count(None) == 1
                assert sum(isinstance(outcome, Fenced) for outcome in outcomes) == 1
                tops[n] += 1
        for n in range(20):
            page = await one.read(key(f"s{n}"), after=0, limit=100, bytes_max=10**6)
            assert page is not None and [r.offset for r in page.records] == list(range(1, 11))


async def test_two_processes_that_were_cloned_do_not_write_as_one(
    server: PostgresServer, schema: str, tmp_path: Path
) -> None:
    async with opened_at(server.dsn, schema, marker_folder=tmp_path / "a") as one:
        head = await grant(one)
        await append(one, head, 0)
        twin = PostgresDatabase(server.dsn, schema=schema, new_id=lambda: one.database._writer_id)
        await twin.open()
        with pytest.raises(Unavailable):  # its row was moved by the twin: it must look again
            await append(one, head, 1)
        assert await top_of(one) == 1
        await append(one, head, 1)
        await twin.close()


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_appends_go_on_by_themselves_after_a_restart(server: PostgresServer, schema: str, how: str) -> None:
    async with opened_at(server.dsn, schema) as journal:
        incarnation = journal.incarnation
        heads = [await grant(journal, f"s{n}") for n in range(10)]
        done = [0] * 10
        halfway = asyncio.Event()

        async def stream(n: int) -> None:
            while done[n] < 60:
                done[n] = await until_stored(journal, heads[n], done[n])
                if min(done) >= 10:
                    halfway.set()

        async with asyncio.TaskGroup() as streams:
            for n in range(10):
                streams.create_task(stream(n))
            await halfway.wait()
            await asyncio.to_thread(getattr(server, how))
            with pytest.raises(Unavailable):
                await journal.list_heads(key().tenant, user=None, limit=1, after=None)
            await asyncio.to_thread(server.start)
        assert journal.incarnation == incarnation, "a crash is no restored backup"
        for n in range(10):
            loaded = await journal.load(key(f"s{n}"), now_ms=NOW)
            assert loaded is not None
            assert loaded.head.fence == 1
            assert loaded.records == tuple(delta(i) for i in range(1, 61))


async def test_what_a_silent_server_does_with_a_batch_is_settled_before_anything_is_read(
    server: PostgresServer, schema: str
) -> None:
    """The server stands still with a batch in hand: unknown to the caller, and what it reads later is final."""
    async with opened_at(server.dsn, schema, timeout_s=1.0) as journal:
        head = await grant(journal)
        await append(journal, head, 0)
        server.pause()
        try:
            with pytest.raises(OutcomeUnknown):
                await append(journal, head, 1)
            with pytest.raises(Unavailable):
                await journal.head(key())
        finally:
            server.resume()
        top = await until_read(journal)
        assert top in (1, 2)
        await append(journal, head, top)
        page = await journal.read(key(), after=0, limit=9, bytes_max=10**6)
        assert page is not None and page.records == tuple(delta(n) for n in range(1, top + 2))


async def test_connections_that_died_without_a_word_cost_one_timeout_together(
    server: PostgresServer, schema: str
) -> None:
    """As a gateway in between leaves them that has forgotten them: open, and nobody at the other end."""
    async with Proxy(server.socket) as proxy:
        dsn = f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres?sslmode=disable"
        async with opened_at(dsn, schema, timeout_s=1.0) as journal:
            head = await grant(journal)
            await append(journal, head, 0)
            await asyncio.gather(*(top_of(journal) for _ in range(4)))
            proxy.half_open("client")
            with pytest.raises(OutcomeUnknown):
                await append(journal, head, 1)
            assert await asyncio.gather(*(top_of(journal) for _ in range(4))) == [1] * 4
            await append(journal, head, 1)


async def test_reads_and_grants_whose_connection_is_reset_before_the_answer_comes(
    server: PostgresServer, schema: str
) -> None:
    async with Proxy(server.socket) as proxy:
        dsn = f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres?sslmode=disable"
        async with opened_at(dsn, schema) as journal:
            head = await grant(journal)
            await append(journal, head, 0)
            assert await reset_in_the_middle(proxy, lambda: top_of(journal)) == 1, "sent again, on another connection"
            with pytest.raises(OutcomeUnknown):
                await reset_in_the_middle(proxy, lambda: grant(journal, "another"))


async def reset_in_the_middle(proxy: Proxy, ask: Callable[[], Awaitable[object]]) -> object:
    """Asks, and has the connection reset when the server has answered and the answer has not come."""
    proxy.set(down=Flow(hole=True))
    swallowed = proxy.counts.swallowed
    asked = asyncio.ensure_future(ask())
    async with asyncio.timeout(60):
        while proxy.counts.swallowed == swallowed:  # noqa: ASYNC110 - a counter, which signals nothing
            await asyncio.sleep(0)
    proxy.heal()
    proxy.reset()
    return await asked


async def until_read(journal: PostgresJournal) -> int:
    while True:
        try:
            return await top_of(journal)
        except Unavailable:
            await asyncio.sleep(0)


async def test_a_lock_that_is_held_too_long_is_an_error_and_not_a_wait_for_ever(
    server: PostgresServer, schema: str
) -> None:
    async with opened_at(server.dsn, schema, timeout_s=0.5) as journal:
        head = await grant(journal)
        async with by_hand(server, schema) as connection:
            transaction = connection.transaction()
            await transaction.start()
            await connection.execute("SELECT * FROM heads FOR UPDATE")
            with pytest.raises(Unavailable) as caught:
                await append(journal, head, 0)
            assert type(caught.value) is Unavailable, "the server said that nothing happened"
            await transaction.rollback()
        assert await until_stored(journal, head, 0) == 1


async def test_a_server_that_is_restored_under_a_running_process_is_noticed(
    server: PostgresServer, schema: str
) -> None:
    async with opened_at(server.dsn, schema) as journal:
        head = await grant(journal)
        await append(journal, head, 0)
        await asyncio.to_thread(server.stop)
        await asyncio.to_thread(server.backup)
        await asyncio.to_thread(server.start)
        assert await until_stored(journal, head, 1) == 2
        before = journal.incarnation
        await asyncio.to_thread(server.stop)
        await asyncio.to_thread(server.restore)
        await asyncio.to_thread(server.start)
        assert await until_read(journal) == 1
        assert journal.incarnation != before
        with pytest.raises(Fenced):
            await append(journal, head, 1)
        found = await journal.head(key())
        assert found is not None
        again = await grant(journal, fence=found.fence, epoch="e2")
        assert (again.epoch, again.incarnation, again.top) == ("e2", journal.incarnation, 1)
        # Others adopt what was found out, and nobody finds it out twice.
        async with opened_at(server.dsn, schema) as other:
            assert other.incarnation == journal.incarnation
        journal.database._drop_writer()
        await append(journal, again, 1)
        assert again.incarnation == journal.incarnation


async def test_another_timeline_or_database_is_a_new_incarnation(server: PostgresServer, schema: str) -> None:
    async with opened_at(server.dsn, schema) as journal:
        first = journal.incarnation
        head = await grant(journal)
    async with by_hand(server, schema) as connection:
        await connection.execute("UPDATE store SET identity = replace(identity, '.00000001.', '.00000000.')")
    async with opened_at(server.dsn, schema) as journal:
        assert journal.incarnation != first
        with pytest.raises(Fenced):
            await append(journal, head, 0)


async def test_a_database_that_is_away_is_named_with_its_port_and_without_its_password() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))  # not listening
        port = reserved.getsockname()[1]
        with pytest.raises(Unavailable, match=rf"PostgreSQL at 127\.0\.0\.1:{port}/x cannot be used") as refused:
            await PostgresDatabase(f"postgresql://me:secret@127.0.0.1:{port}/x").open()
    assert refused.value.retryable and "secret" not in refused.value.public_message.split("(")[0]
