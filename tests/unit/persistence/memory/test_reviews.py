"""Review cases in memory: filters, transitions, and who goes when there are too many."""

from __future__ import annotations

from typing import Any

import pytest

from persistence.memory.store import MemoryStore
from sessions.model.errors import Conflict, NotFound
from sessions.model.reviews import CLAIM_MS, Case, ReviewId, ReviewPosition, ReviewQuery
from sessions.model.types import UnixMs
from tests.support.stores.journals import NOW, a_log, an_append, key


def a_case(name: str, at: int = 0, **fields: Any) -> Case:
    about: dict[str, Any] = {"cause": "policy", "direction": "output", "action": "block", "category": "pii/email"}
    about |= {"score": 0.5, "model": "m", "policy": "p", "user": "ü", "offset": 1, "start": 0, "end": 4, "kept": "a@b"}
    return Case(id=ReviewId(name), key=key("s"), opened_at=UnixMs(NOW + at), **about | fields)


async def put(store: MemoryStore, *cases: Case) -> None:
    head = await a_log(store.journal, "s", 0)
    await store.journal.append(an_append(head, 1, reviews=cases))


@pytest.mark.parametrize(
    ("narrowed", "names"),
    [
        ({}, "abc"),
        ({"category": "pii"}, "ab"),
        ({"category": "pii/email"}, "a"),
        ({"state": "claimed"}, "b"),
        ({"state": "open"}, "ac"),
        ({"state": "decided"}, ""),
        ({"opened_before": NOW + 1}, "a"),
        ({"appealed": True}, "c"),
    ],
)
async def test_a_page_holds_what_a_query_says(store: MemoryStore, narrowed: dict[str, Any], names: str) -> None:
    appeal = a_case("c", 2, category="toxicity", appealed_at=NOW, note="why")
    await put(store, a_case("a"), a_case("b", 1, category="pii/phone"), appeal)
    await store.reviews.claim(ReviewId("b"), by="eve", now=NOW, command="c1")
    page = await store.reviews.page(ReviewQuery(now=NOW, **narrowed), after=None, limit=9)
    assert "".join(case.id for case in page) == names and not any(case.kept or case.note for case in page)
    behind = await store.reviews.page(
        ReviewQuery(now=NOW, **narrowed), after=ReviewPosition(UnixMs(NOW + 1), ReviewId("b")), limit=9
    )
    assert "".join(case.id for case in behind) == names.replace("a", "").replace("b", "")


async def test_a_case_is_claimed_decided_and_delivered_once(store: MemoryStore) -> None:
    await put(store, a_case("a"))
    name, reviews = ReviewId("a"), store.reviews
    with pytest.raises(NotFound):
        await reviews.claim(ReviewId("nothing"), by="eve", now=NOW, command="c1")
    claimed = await reviews.claim(name, by="eve", now=NOW, command="c1")
    assert (claimed.claimed_by, claimed.claimed_until, claimed.kept) == ("eve", NOW + CLAIM_MS, "a@b")
    assert await reviews.claim(name, by="eve", now=UnixMs(NOW + 5), command="c1") == claimed, "the same command"
    with pytest.raises(Conflict):
        await reviews.claim(name, by="bob", now=NOW, command="c2")
    decided = await reviews.decide(name, by="eve", outcome="upheld", remark="so", now=NOW, command="d1")
    assert (decided.state, decided.remark, decided.decisions, decided.told) == ("decided", "so", 1, False)
    (waiting,) = await reviews.undelivered(limit=9)
    assert waiting.id == name
    await reviews.mark_delivered(name, decision=2)
    assert len(await reviews.undelivered(limit=9)) == 1, "of another decision"
    await reviews.mark_delivered(name, decision=1)
    assert await reviews.undelivered(limit=9) == []


async def test_too_many_cases_lose_the_oldest_that_no_user_appealed(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("persistence.memory.reviews.CASES_MAX", 2)
    await put(store, a_case("a", appealed_at=NOW), *(a_case(name, n) for n, name in enumerate("bcd", 1)))
    tidied = await store.reviews.tidy(now=UnixMs(NOW + 9))
    assert tidied == (0, 2)
    left = await store.reviews.page(ReviewQuery(now=NOW), after=None, limit=9)
    assert [case.id for case in left] == ["a", "d"]
