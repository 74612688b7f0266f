"""Review cases in SQL: statements that grow with a query, sealed texts, races and tidying in steps."""

from __future__ import annotations

from typing import Any

import pytest

from persistence.sql.reviews import list_statement
from persistence.sqlite.store import SqliteStore
from sessions.model.errors import Conflict
from sessions.model.reviews import DECIDED_MS, OPEN_MS, Case, ReviewId, ReviewPosition, ReviewQuery
from sessions.model.types import UnixMs
from tests.support.stores.journals import ACME, NOW, a_log, an_append, key


def a_case(name: str, **fields: Any) -> Case:
    about: dict[str, Any] = {"cause": "policy", "direction": "output", "action": "block", "category": "pii/email"}
    about |= {"score": 0.5, "model": "m", "policy": "p", "user": None, "offset": 1, "start": 0, "end": 4}
    return Case(id=ReviewId(name), key=key("s"), opened_at=NOW, **about | fields)


async def put(store: SqliteStore, *cases: Case) -> None:
    await store.journal.append(an_append(await a_log(store.journal, "s", 0), 1, reviews=cases))


@pytest.mark.parametrize(
    ("narrowed", "text", "values"),
    [
        ({}, "1 = 1 ORDER", []),
        ({"tenant": ACME}, "tenant = $1", [ACME]),
        ({"category": "pii"}, "category = $1 OR substr", ["pii"]),
        ({"state": "open"}, "claimed_until <= $1", [NOW]),
        ({"state": "claimed"}, "claimed_until > $1", [NOW]),
        ({"state": "decided"}, "state = 'decided'", []),
        ({"opened_before": UnixMs(5)}, "opened_at < $1", [5]),
        ({"appealed": False}, "appealed_at IS NULL", []),
        ({"appealed": True}, "appealed_at IS NOT NULL", []),
    ],
)
def test_a_statement_grows_with_its_query(narrowed: dict[str, Any], text: str, values: list[Any]) -> None:
    statement, given = list_statement(ReviewQuery(now=NOW, **narrowed), None, 7)
    assert text in statement and given == [*values, 7]
    statement, given = list_statement(ReviewQuery(now=NOW, **narrowed), ReviewPosition(NOW, ReviewId("r")), 7)
    assert "(opened_at, id) > " in statement and given == [*values, NOW, "r", 7]


async def test_texts_are_sealed_in_the_table_and_left_out_of_lists(store: SqliteStore) -> None:
    case = a_case("a", kept="a@b.cd", note="why", appealed_at=NOW)
    await put(store, case)
    ((kept,),) = await store.database.rows("SELECT kept FROM reviews")
    assert kept not in (b"", b"a@b.cd") and await store.reviews.find(case.id) == case
    (listed,) = await store.reviews.page(ReviewQuery(now=NOW), after=None, limit=9)
    assert (listed.id, listed.kept, listed.note) == ("a", "", "")


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
