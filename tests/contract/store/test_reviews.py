"""One suite for review cases on every journal: opened by appends, moved by compare-and-swap, bounded, gone with their
session."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sessions.model.errors import Conflict, Fenced, NotFound
from sessions.model.journal_types import Append, Due
from sessions.model.reviews import (
    CLAIM_MS,
    DECIDED_MS,
    OPEN_MS,
    Case,
    ReviewId,
    ReviewPosition,
    ReviewQuery,
    ReviewStore,
    Subject,
    case_of,
    cases_to_open,
    command_mark,
    feedback_case,
)
from sessions.model.types import ItemId, ResponseId, TenantId, UnixMs
from sessions.model.verdicts import Finding
from sessions.ports import Journal
from sessions.store import Store
from tests.support.stores.journals import ACME, NOW, Bed, a_log, an_append, grant, key, patch, purge, reopened

FLAG = Finding(category="toxicity", action="flag", start=3, end=9, score=0.75, model="m/1", policy="p1", review=True)
BLOCK = Finding(category="pii/email", action="block", start=0, end=4, model="patterns/1", policy="p1", review=True)


@pytest.fixture
def books(store: Store) -> ReviewStore:
    return store.reviews


def a_case(session: str = "s", finding: Finding = FLAG, *, subject: str = "resp_1", **more: Any) -> Case:
    given = {"tenant": ACME, "now": NOW, "user": "ü", "response_id": ResponseId(subject), **more}
    appeal = given.pop("appeal", None)
    at = key(session, given.pop("tenant"))
    return case_of(finding, Subject(key=at, name=subject, direction="output", offset=3, **given), appeal=appeal)


async def put(journal: Journal, *cases: Case) -> None:
    """By appends to the cases' sessions."""
    for case in cases:
        head = await journal.head(case.key) or await grant(journal, case.key)
        await journal.append(an_append(head, 1, reviews=(case,)))


def marked(name: str, by: str, *said: str) -> str:
    return command_mark(name, by, *said)


async def claimed(books: ReviewStore, case: Case, by: str = "eve", *, now: int = NOW, name: str = "c1") -> Case:
    return await books.claim(case.id, by=by, now=UnixMs(now), command=marked(name, by, "claim"))


async def decided(
    books: ReviewStore, case: Case, outcome: Any = "upheld", by: str = "eve", *, now: int = NOW, name: str = "d1"
) -> Case:
    command = marked(name, by, outcome)
    return await books.decide(case.id, by=by, outcome=outcome, remark="so it is 🙂", now=UnixMs(now), command=command)


async def test_a_case_stands_with_its_append_and_not_without(journal: Journal, books: ReviewStore) -> None:
    case = a_case(finding=Finding(**{**_fields(BLOCK), "kept": "ana@ünï"}), appeal="why?", item_id=ItemId("msg_1"))
    head = await grant(journal, case.key)
    with pytest.raises(Fenced):
        await journal.append(an_append(head, 1, fence=head.fence + 7, reviews=(case,)))
    assert await books.find(case.id) is None
    await journal.append(an_append(head, 1, reviews=(case,)))
    assert await books.find(case.id) == case
    (listed,) = await books.page(ReviewQuery(now=NOW), after=None, limit=9)
    assert (listed.id, listed.kept, listed.note) == (case.id, "", "")
    assert await books.find(ReviewId("rev_none")) is None


def _fields(finding: Finding) -> dict[str, Any]:
    return {name: getattr(finding, name) for name in finding.__struct_fields__}


async def test_an_append_of_cases_alone_and_one_with_everything(journal: Journal, books: ReviewStore) -> None:
    head = await a_log(journal, "s", 2)
    one, two = a_case(), a_case(finding=BLOCK)
    await journal.append(Append(key=head.key, fence=head.fence, top=head.top, reviews=(one,), at=NOW))
    await journal.append(an_append(head, 2, head=patch(open=True), reviews=(one, two, two)))
    found = await books.page(ReviewQuery(now=NOW), after=None, limit=9)
    assert {case.id for case in found} == {one.id, two.id}


async def test_what_is_found_again_opens_nothing(journal: Journal, books: ReviewStore) -> None:
    first = a_case()
    await put(journal, first)
    await claimed(books, first)
    again = a_case(now=NOW + 5)
    await put(journal, again)
    case = await books.find(first.id)
    assert case is not None and case.opened_at == NOW and case.state == "claimed"
    answer = Subject(key=first.key, name="resp_1", direction="output", user=None, offset=9, now=NOW)
    opened = cases_to_open([FLAG, FLAG, BLOCK], answer, known=(FLAG,))
    assert [case.category for case in opened] == ["pii/email"]


async def test_a_claim_is_one_persons_until_it_lapses(journal: Journal, books: ReviewStore) -> None:
    case = a_case()
    await put(journal, case)
    mine = await claimed(books, case)
    assert (mine.state, mine.claimed_by, mine.claimed_until) == ("claimed", "eve", NOW + CLAIM_MS)
    with pytest.raises(Conflict) as taken:
        await claimed(books, case, "ben", name="c2")
    assert taken.value.code == "review_claimed"
    assert (await claimed(books, case, now=NOW + 9)).claimed_until == NOW + CLAIM_MS  # the same command
    longer = await claimed(books, case, now=NOW + 9, name="c3")
    assert longer.claimed_until == NOW + 9 + CLAIM_MS
    with pytest.raises(Conflict) as reused:
        await books.claim(case.id, by="eve", now=NOW, command=marked("c3", "eve", "something else"))
    assert reused.value.code == "idempotency_conflict"
    lapsed = NOW + 9 + CLAIM_MS
    assert longer.standing(lapsed) == "open"
    assert (await claimed(books, case, "ben", now=lapsed, name="c4")).claimed_by == "ben"
    with pytest.raises(Conflict):
        await decided(books, case, now=lapsed)
    with pytest.raises(NotFound):
        await claimed(books, a_case("other"))


async def test_of_many_who_claim_at_once_one_has_it(journal: Journal, books: ReviewStore) -> None:
    case = a_case()
    await put(journal, case)
    who = [f"r{n}" for n in range(6)]
    came = await asyncio.gather(*(claimed(books, case, by, name=by) for by in who), return_exceptions=True)
    won = [each for each in came if isinstance(each, Case)]
    assert len(won) == 1 and all(isinstance(each, Case | Conflict) for each in came)
    stands = await books.find(case.id)
    assert stands is not None and stands.claimed_by == won[0].claimed_by


async def test_a_decision_needs_a_claim_is_made_once_and_says_the_same_again(
    journal: Journal, books: ReviewStore
) -> None:
    case = a_case(finding=BLOCK)
    await put(journal, case)
    with pytest.raises(Conflict) as early:
        await decided(books, case)
    assert early.value.code == "review_not_claimed"
    await claimed(books, case)
    done = await decided(books, case, "overturned", now=NOW + 1)
    assert (done.state, done.outcome, done.decided_by, done.decided_at) == ("decided", "overturned", "eve", NOW + 1)
    assert (done.remark, done.decisions, done.claimed_by, done.told) == ("so it is 🙂", 1, "", False)
    assert await decided(books, case, "overturned", now=NOW + 2) == done
    with pytest.raises(Conflict) as again:
        await decided(books, case, "upheld", name="d2")
    assert again.value.code == "review_decided"
    with pytest.raises(Conflict):
        await claimed(books, case, "ben", name="c9")
    (untold,) = await books.undelivered(limit=5)
    assert untold.id == case.id
    await books.mark_delivered(case.id, decision=2)
    assert await books.undelivered(limit=5) != []
    await books.mark_delivered(case.id, decision=1)
    assert await books.undelivered(limit=5) == []


async def test_of_a_mere_flag_nobody_is_told(journal: Journal, books: ReviewStore) -> None:
    case = a_case()
    await put(journal, case)
    await claimed(books, case)
    assert (await decided(books, case)).told
    assert await books.undelivered(limit=5) == []


async def test_an_appeal_opens_a_decided_case_again_once(journal: Journal, books: ReviewStore) -> None:
    case = a_case(finding=BLOCK)
    await put(journal, case)
    await claimed(books, case)
    await decided(books, case)
    await put(journal, a_case(finding=BLOCK, appeal="it was my own address", now=NOW + 5))
    open_again = await books.find(case.id)
    assert open_again is not None and open_again.state == "open" and open_again.cause == "policy"
    assert (open_again.note, open_again.appealed_at) == ("it was my own address", NOW + 5)
    assert open_again.remark == "so it is 🙂"
    await claimed(books, case, name="c2")
    last = await decided(books, case, "overturned", name="d2")
    assert (last.decisions, last.outcome) == (2, "overturned")
    await put(journal, a_case(finding=BLOCK, appeal="and again", now=NOW + 6))
    stands = await books.find(case.id)
    assert stands is not None and (stands.state, stands.note) == ("decided", "it was my own address")


async def test_pages_and_filters(journal: Journal, books: ReviewStore) -> None:
    cases = [a_case(subject=f"resp_{n}", now=NOW + n // 2) for n in range(5)]
    cases.append(a_case(finding=BLOCK, subject="resp_9", now=NOW + 9, appeal="please"))
    elsewhere = a_case("s", tenant="beta", now=NOW)
    await put(journal, *cases, elsewhere)
    await claimed(books, cases[1])

    async def listed(limit: int = 99, after: ReviewPosition | None = None, now: int = NOW, **query: Any) -> list[str]:
        wanted = ReviewQuery(now=UnixMs(now), **query)
        return [case.id for case in await books.page(wanted, after=after, limit=limit)]

    everything = await listed()
    assert set(everything) == {case.id for case in (*cases, elsewhere)}
    acme = [case.id for case in sorted(cases, key=lambda case: (case.opened_at, case.id))]
    assert await listed(tenant=ACME) == acme and await listed(tenant=TenantId("nobody")) == []
    paged, after = [], None
    while page := await books.page(ReviewQuery(now=NOW, tenant=ACME), after=after, limit=2):
        paged += [case.id for case in page]
        after = ReviewPosition(page[-1].opened_at, page[-1].id)
    assert paged == acme
    assert await listed(category="pii") == await listed(category="pii/email") == [cases[5].id]
    assert await listed(category="pii/phone") == await listed(category="tox") == []
    assert await listed(state="claimed") == [cases[1].id] and cases[1].id not in await listed(state="open")
    assert cases[1].id in await listed(state="open", now=NOW + CLAIM_MS)
    assert await listed(state="claimed", now=NOW + CLAIM_MS) == [] == await listed(state="decided")
    assert await listed(appealed=True) == [cases[5].id]
    assert set(await listed(tenant=ACME, opened_before=NOW + 1)) == {cases[0].id, cases[1].id}


async def test_cases_outlive_the_process(bed: Bed, store: Store) -> None:
    case = a_case(finding=BLOCK, appeal="please")
    await put(store.journal, case)
    await claimed(store.reviews, case)
    done = await decided(store.reviews, case)
    async with reopened(bed, store) as again:
        assert await again.reviews.find(case.id) == done


async def test_cases_go_with_their_session(journal: Journal, books: ReviewStore) -> None:
    case, other = a_case("gone"), a_case("stays")
    await put(journal, case, other)
    head = await journal.head(case.key)
    assert head is not None
    await journal.append(an_append(head, 1, head=patch(deleted_at=NOW)))
    assert await purge(journal, Due(deleted_before=UnixMs(NOW + 1)), commands_before=NOW, limit=9) == [case.key]
    assert await books.find(case.id) is None and await books.find(other.id) is not None


async def test_old_cases_are_let_go(journal: Journal, books: ReviewStore) -> None:
    waits, done, asked = a_case(subject="a"), a_case(subject="b"), a_case(finding=BLOCK, subject="c")
    await put(journal, waits, done, asked)
    await claimed(books, done)
    await decided(books, done)
    await put(journal, a_case(finding=BLOCK, subject="c", now=NOW + OPEN_MS, appeal="please"))
    assert await books.tidy(now=UnixMs(NOW + OPEN_MS)) == (0, 0)
    assert await books.tidy(now=UnixMs(NOW + OPEN_MS + 1)) == (1, 0)
    assert {case.id for case in await books.page(ReviewQuery(now=NOW), after=None, limit=9)} == {done.id, asked.id}
    assert await books.tidy(now=UnixMs(NOW + DECIDED_MS + 1)) == (1, 0)
    assert await books.page(ReviewQuery(now=NOW), after=None, limit=9) == []


async def test_a_flood_of_findings_pushes_out_findings_and_no_appeal(
    journal: Journal, books: ReviewStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("persistence.sql.reviews.CASES_MAX", 3)
    asked = a_case(finding=BLOCK, subject="asked", appeal="please")
    flood = [a_case(subject=f"f{n}", now=NOW + n) for n in range(6)]
    await put(journal, asked, *flood, a_case("s", tenant="beta"))
    assert await books.tidy(now=UnixMs(NOW + 9)) == (0, 4)
    left = await books.page(ReviewQuery(now=NOW, tenant=ACME), after=None, limit=9)
    assert {case.id for case in left} == {asked.id, flood[4].id, flood[5].id}
    assert len(await books.page(ReviewQuery(now=NOW), after=None, limit=9)) == 4


async def test_a_flood_of_ratings_pushes_out_ratings_alone(
    journal: Journal, books: ReviewStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("persistence.sql.reviews.CASES_MAX", 2)
    found = a_case(subject="policy")
    subjects = [
        Subject(
            key=key("s", ACME),
            name=f"r{n}",
            direction="output",
            user="ü",
            offset=3,
            now=UnixMs(NOW + n),
            response_id=None,
        )
        for n in range(1, 5)
    ]
    rated = [feedback_case(subject, "bad", model="m") for subject in subjects]
    await put(journal, found, *rated)
    assert await books.tidy(now=UnixMs(NOW + 9)) == (0, 3)
    left = await books.page(ReviewQuery(now=NOW), after=None, limit=9)
    assert {case.id for case in left} == {found.id, rated[-1].id}
