"""Review cases in SQL: statements that grow with a query, sealed texts, races and tidying in steps."""

from __future__ import annotations

from typing import Any

import pytest

from persistence.sqlite.store import SqliteStore
from sessions.model.errors import Conflict
from sessions.model.reviews import DECIDED_MS, OPEN_MS, Case, ReviewId
from sessions.model.types import UnixMs
from tests.support.stores.journals import NOW, a_log, an_append, key


def a_case(name: str, **fields: Any) -> Case:
    about: dict[str, Any] = {"cause": "policy", "direction": "output", "action": "block", "category": "pii/email"}
    about |= {"score": 0.5, "model": "m", "policy": "p", "user": None, "offset": 1, "start": 0, "end": 4}
    return Case(id=ReviewId(name), key=key("s"), opened_at=NOW, **about | fields)


async def put(store: SqliteStore, *cases: Case) -> None:
    await store.journal.append(an_append(await a_log(store.journal, "s", 0), 1, reviews=cases))


async def test_a_transition_that_always_meets_another_gives_up(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the statement never finds the state that the check has seen."""
    await put(store, a_case("a"))
    monkeypatch.setattr(
        "persistence.sql.reviews.CLAIM", "UPDATE reviews SET state = 'claimed' WHERE id = $1 AND $2 = $4 AND $3 = $5"
    )
    with pytest.raises(Conflict) as caught:
        await store.reviews.claim(ReviewId("a"), by="eve", now=NOW, command="c")
    assert caught.value.retryable


async def test_tidying_goes_in_steps_and_counts_what_was_not_decided(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("persistence.sql.reviews.TIDY_ROWS", 2)
    await put(store, *(a_case(f"c{n}", action="flag") for n in range(5)))
    name = ReviewId("c0")
    await store.reviews.claim(name, by="eve", now=NOW, command="c")
    decided = await store.reviews.decide(name, by="eve", outcome="upheld", remark="", now=NOW, command="d")
    assert decided.told, "nobody waits to hear of a mere flag"
    assert await store.reviews.tidy(now=UnixMs(NOW + OPEN_MS + 1)) == (4, 0)
    assert await store.reviews.tidy(now=UnixMs(NOW + DECIDED_MS + 1)) == (0, 0)
    assert await store.reviews.find(name) is None
