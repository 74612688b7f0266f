"""The journal in SQL: what it makes of rows, whichever driver's statements they answer."""

from __future__ import annotations

import pytest

from persistence.codec import HeadBody, PlainCodec, encode_head_body
from persistence.sql.journal import HEAD_COLUMNS, head_from
from persistence.sqlite.store import SqliteStore
from sessions.model.errors import BadInput, NotFound
from sessions.model.journal_types import Due, Head
from sessions.model.types import Epoch, UnixMs
from tests.support.stores.journals import ACME, NOW, a_log, key


def test_a_head_is_made_of_its_columns_in_their_order() -> None:
    about = encode_head_body(HeadBody("A title", {"a": 1}))
    columns = (*key("s"), "e", 3, "i", 7, 1, "o", "u", "m", 0, NOW, NOW + 1, None, "", about)
    assert len(columns) == HEAD_COLUMNS
    assert head_from(PlainCodec(), columns, about) == Head(
        key=key("s"),
        epoch=Epoch("e"),
        fence=3,
        incarnation="i",
        top=7,
        open=True,
        owner="o",
        user="u",
        model="m",
        title="A title",
        metadata={"a": 1},
        listed=False,
        created_at=NOW,
        updated_at=UnixMs(NOW + 1),
    )


async def test_what_is_not_there_is_none_and_a_place_that_is_unknown_is_refused(store: SqliteStore) -> None:
    journal = store.journal
    await a_log(journal, "s", 1)
    assert await journal.head(key("x")) is None and await journal.load(key("x"), now_ms=NOW) is None
    assert await journal.read(key("x"), after=0, limit=1, bytes_max=1) is None
    with pytest.raises(NotFound):
        await journal.list_heads(ACME, user=None, limit=1, after=key("x"))
    with pytest.raises(NotFound):
        await journal.list_heads(ACME, user=None, limit=1, after=key("s", "other"))
    with pytest.raises(BadInput):
        await journal.list_heads(ACME, user="\0", limit=1, after=None)


async def test_what_may_be_due_is_narrowed_down(store: SqliteStore) -> None:
    for session in ("a", "b"):
        await a_log(store.journal, session, 1)
    later = UnixMs(NOW + 1000)
    idle = Due(deleted_before=UnixMs(0), idle_before=later)
    assert sorted(await store.journal.purgeable(idle, limit=9)) == [key("a"), key("b")]
    assert len(await store.journal.purgeable(idle, limit=1)) == 1
    besides = Due(deleted_before=UnixMs(0), idle_before=later, besides=(ACME,))
    assert await store.journal.purgeable(besides, limit=9) == []
