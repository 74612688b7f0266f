"""Searching conversations: what matches, what is shown of it, who sees what, and how much one request looks at."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import structlog

from sessions.machine.state import State, apply, empty
from sessions.model import events as ev
from sessions.model.errors import BadInput, Internal, Limited
from sessions.model.types import LOCAL_PRINCIPAL, Principal, SessionKey, UnixMs
from tests.support.doors.transport import TENANT, FakeSessions, key_of, memory_sessions, message_created
from transport.reading import search
from transport.reading.log_reader import LogReader
from transport.reading.search import ConversationSearch, matches_of, words_of


def named(title: str | None) -> ev.SessionCreated:
    return ev.SessionCreated(info=ev.SessionInfo(model="m", title=title, created_at=UnixMs(1)))


def folded(*events: ev.AnyEvent) -> State:
    state = empty(key_of("s"), user=None)
    for offset, event in enumerate(events, 1):
        apply(state, ev.Record(offset, UnixMs(offset), event))
    return state


def searching(sessions: FakeSessions) -> ConversationSearch:
    logs = LogReader(sessions.journal, now_ms=lambda: UnixMs(1), replay_records_max=100)
    return ConversationSearch(sessions.journal, logs, asyncio.get_running_loop().time)


@pytest.mark.parametrize(
    ("text", "query", "found"),
    [
        ("ΟΔΟΣ και οδός", "οδοσ", "ΟΔΟΣ"),
        ("in İzmir heute", "izmir", "İzmir"),
        ("İİİ STRASSE", "strasse", "STRASSE"),
        ("die Straße", "STRAẞE", "Straße"),
        ("5 µm", "ΜM", "µm"),
        ("ЁЖ", "ёж", "ЁЖ"),
        ("Herr Mu\u0308ller kommt", "m\u00fcller", "Mu\u0308ller"),
        ("Herr M\u00fcller kommt", "mu\u0308ller", "M\u00fcller"),
        ("\uff76\uff9e\uff7d料金", "ガス", "\uff76\uff9e\uff7d"),
        ("내 \u1112\u1161\u11a8\u110c\u1165\u11b7", "학점", "\u1112\u1161\u11a8\u110c\u1165\u11b7"),
        ("ＡＢＣ", "abc", "ＡＢＣ"),
    ],
)
def test_case_is_that_of_any_script_and_places_stay(text: str, query: str, found: str) -> None:
    (match,) = matches_of(folded(named(None), message_created(text, "a")), words_of(query))[0]
    assert match.snippet[match.start : match.end] == found


def test_a_letter_with_half_a_million_marks_is_searched_in_the_time_of_its_length() -> None:
    """Sorted at once the marks would hold the process up for minutes: the time-out of this test."""
    assert words_of("b").snippet("a" + "\u0301" * 240_000 + "\u0323" * 240_000) is None


def test_a_long_query_that_almost_matches_everywhere_is_not_found() -> None:
    assert words_of("a" * 255 + "b").snippet("a" * 2_000_000) is None


@pytest.mark.parametrize("query", ["", "  ", "x" * 257, " ".join("abcdefghijklmnopq")])
def test_a_query_has_some_words_and_not_too_many(query: str) -> None:
    with pytest.raises(BadInput):
        words_of(query)


async def test_a_session_that_cannot_be_read_is_passed_over_and_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = await memory_sessions()
    for name in ("a", "b", "c"):
        await sessions.append(name, named(None), message_created(f"bread {name}", name))
    load = sessions.journal.load

    async def damaged(key: SessionKey, **more: Any) -> Any:
        if key == key_of("b"):
            raise Internal("body_unreadable", "A stored record cannot be read.")
        return await load(key, **more)

    monkeypatch.setattr(sessions.journal, "load", damaged)
    with structlog.testing.capture_logs() as logged:
        page = await searching(sessions).search(LOCAL_PRINCIPAL, "bread", limit=9, after=None)
    assert {hit.head.key.session for hit in page.hits} == {"a", "c"} and not page.has_more
    assert [entry["session"] for entry in logged if entry["event"] == "session_unreadable"] == ["b"]


async def test_an_end_user_finds_no_session_of_another() -> None:
    sessions = await memory_sessions()
    await sessions.append("s", named(None), message_created("needle", "a"))
    for user in ("ana", None):
        principal = Principal(tenant=TENANT, key_id="k", user=user)
        page = await searching(sessions).search(principal, "needle", limit=20, after=None)
        assert page.hits == ()


async def test_waiting_searches_of_a_principal_are_bounded() -> None:
    sessions = await memory_sessions()
    await sessions.append("s", named(None), message_created("needle", "a"))
    searches = searching(sessions)
    begun = [
        asyncio.create_task(searches.search(LOCAL_PRINCIPAL, "needle", limit=1, after=None))
        for _ in range(search.WAITING_MAX)
    ]
    await asyncio.sleep(0)
    with pytest.raises(Limited):
        await searches.search(LOCAL_PRINCIPAL, "needle", limit=1, after=None)
    assert [len((await each).hits) for each in begun] == [1] * search.WAITING_MAX
    assert len((await searches.search(LOCAL_PRINCIPAL, "needle", limit=1, after=None)).hits) == 1


async def test_names_of_users_that_a_key_makes_up_are_no_searches_without_end() -> None:
    """And somebody else's search waits for one of theirs at most."""
    sessions = await memory_sessions()
    searches = searching(sessions)
    made_up = [Principal(tenant=TENANT, key_id="k", user=f"u{number}") for number in range(search.WAITING_PER_KEY)]
    ended: list[Principal] = []

    async def searched(principal: Principal) -> None:
        await searches.search(principal, "needle", limit=1, after=None)
        ended.append(principal)

    for _ in range(search.SEARCHES_MAX):
        await searches._places.acquire()
    begun = [asyncio.create_task(searched(each)) for each in (*made_up, LOCAL_PRINCIPAL)]
    await asyncio.sleep(0)
    with pytest.raises(Limited):
        await searched(Principal(tenant=TENANT, key_id="k", user="one more"))
    for _ in range(search.SEARCHES_MAX):
        searches._places.release()
    await asyncio.gather(*begun)
    assert ended.index(LOCAL_PRINCIPAL) <= 1
    assert not searches._keys and not searches._waiting
