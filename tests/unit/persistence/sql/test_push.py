"""Push in SQL: looking for work writes nothing, and what is stored of a device is readable for its own user alone."""

from __future__ import annotations

import pytest

from persistence.sqlite.store import SqliteStore
from sessions.model.errors import BadInput
from sessions.model.push import GRACE_MS, PushId
from sessions.model.types import UnixMs
from tests.support.stores.journals import ACME, NOW, a_log, key
from tests.support.stores.push_rows import a_device


async def test_a_relay_without_work_commits_nothing(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await store.push.subscribe(a_device("phone"))
    await a_log(store.journal, "s", 2)

    async def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a transaction")

    monkeypatch.setattr(store.database, "run", refuse)
    assert await store.push.claim(UnixMs(NOW + GRACE_MS), until=UnixMs(NOW + GRACE_MS), limit=9) == []
    await store.push.read_to(key("s"), 9)


async def test_names_that_cannot_be_stored_are_refused(store: SqliteStore) -> None:
    with pytest.raises(BadInput):
        await store.push.subscriptions(ACME, "\x00")
    with pytest.raises(BadInput):
        await store.push.unsubscribe(ACME, "ü", PushId("\ud800"))
