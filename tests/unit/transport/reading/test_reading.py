"""Reading logs: feeds, searches, and what is shared by links."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import pytest
import structlog

from sessions.limits import TenantLimits
from sessions.machine.state import State, apply, empty
from sessions.model import commands as cm
from sessions.model import events as ev
from sessions.model.audit import public
from sessions.model.errors import BadInput, Forbidden, Gone, Internal, Limited, NotFound
from sessions.model.events import Record
from sessions.model.types import (
    LOCAL_PRINCIPAL,
    Epoch,
    InputFile,
    InputText,
    ItemId,
    Principal,
    SessionKey,
    TenantId,
    UnixMs,
)
from sessions.ports import Published
from tests.support.cluster.replicas import KEY
from tests.support.doors.transport import (
    TENANT,
    FakeSessions,
    Source,
    begun,
    created,
    delta,
    function_output,
    gateway_over,
    http_client,
    key_of,
    memory_sessions,
    message_created,
    retracted,
)
from tests.support.garbage import no_cycles
from transport.gateway import Gateway
from transport.protocol.frames import JSON
from transport.reading import search
from transport.reading.feeds import Feed, FeedReader, Feeds
from transport.reading.log_reader import LogReader
from transport.reading.search import ConversationSearch, matches_of, words_of
from transport.reading.sharing import (
    READS_PER_ADDRESS,
    READS_PER_MINUTE,
    READS_PER_SHARE,
    READS_PER_TENANT,
    UNKNOWN_PER_MINUTE,
    ReadRate,
)


class Sessions:
    """No more than that they can be watched."""

    def watch(self, key: SessionKey, sink: object) -> Callable[[], None]:
        sinks = [sink]
        return lambda: sinks.remove(sink)


class Silent:
    """Reads nothing."""

    def readable(self, reader: FeedReader) -> None: ...


class Nobody:
    """Holds its reader, as a cursor does."""

    def __init__(self, feeds: Feeds) -> None:
        self.reader = feeds.acquire(KEY, self, JSON)

    def readable(self, reader: FeedReader) -> None:
        raise AssertionError("nothing is published")


def test_a_feed_that_nobody_reads_is_free_at_once() -> None:
    feeds = Feeds(Sessions())  # type: ignore[arg-type]
    with no_cycles(Feed, FeedReader):
        feeds.release(Nobody(feeds).reader)
        assert len(feeds) == 0


def test_retractions_are_not_taken_for_known_across_a_gap() -> None:
    """A page that was read up to offset 10 says nothing of what lies between it and a batch that was published."""
    feed = Nobody(Feeds(Sessions())).reader.feed  # type: ignore[arg-type]
    feed.remember(12, 14, [(14, retracted(5, 17, "##"))])
    feed.remember(7, 10, [])
    assert feed.covers(12, 14) and not feed.covers(7, 14)
    feed.remember(7, 13, [(11, retracted(3, 11))])
    assert feed.covers(7, 14)
    assert [offset for offset, _ in feed.retractions] == [11, 14]


def test_a_tail_ends_when_the_journal_tells_of_a_retraction_behind_it() -> None:
    """The owner that retracted it was not heard here, so the tail holds what was taken back."""
    feed = Feeds(Sessions()).acquire(KEY, Silent(), JSON).feed  # type: ignore[arg-type]
    records = tuple(Record(offset, UnixMs(0), message_created("my PIN", f"msg_{offset}")) for offset in (1, 2))
    feed.publish(Published(KEY, Epoch("e"), records))
    assert feed.after(1) is not None
    feed.remember(0, 3, [(3, retracted(0, 6, item="msg_2"))])
    assert feed.after(1) is None, "read from the journal, scrubbed"


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


@pytest.fixture
async def sessions() -> FakeSessions:
    made = await memory_sessions()
    info = ev.SessionInfo(
        model="m", title="Bread", instructions="secret orders", metadata={"a": "secret note"}, created_at=UnixMs(1)
    )
    output = function_output("o", "secret output", parent="b")
    await made.append(
        "s",
        ev.SessionCreated(info=info),
        message_created("how?", "a", None),
        message_created("so", "b", "a", "assistant"),
        ev.ItemCreated(item=output),
        message_created("secret prompt", "p", "o", "system"),
        message_created("thanks", "d", "p"),
    )
    return made


@pytest.fixture
async def gateway(sessions: FakeSessions) -> Gateway:
    return gateway_over(sessions)


async def shared(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    answer = await client.post("/v1/sessions/s/shares", json=body)
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def texts(client: httpx.AsyncClient, token: str) -> list[str] | int:
    answer = await client.get(f"/v1/shares/{token}")
    return [each["text"] for each in answer.json()["messages"]] if answer.status_code == 200 else answer.status_code


async def test_the_token_is_shown_once_and_stored_nowhere(gateway: Gateway) -> None:
    async with http_client(gateway) as client:
        made = await shared(client)
        listed = await client.get("/v1/sessions/s/shares")
    assert len(made["token"]) == 43 and made["token"] not in listed.text
    assert [each["id"] for each in listed.json()["data"]] == [made["id"]]
    database = gateway.store.shares._database  # type: ignore[attr-defined]
    for table in ("shares", "audit"):
        assert made["token"] not in repr(await database.rows(f"SELECT * FROM {table}"))


async def test_a_share_names_the_files_and_keeps_their_texts(sessions: FakeSessions, gateway: Gateway) -> None:
    file = InputFile(filename="pay.txt", text="secret salaries")
    for item, content in (("f", (file,)), ("g", (file, InputText(text="Who earns most?")))):
        created = message_created("", item, "d").item
        await sessions.append("s", ev.ItemCreated(item=msgspec.structs.replace(created, content=content)))
        async with http_client(gateway) as client:
            answer = await client.get(f"/v1/shares/{(await shared(client))['token']}")
        assert "secret" not in answer.text
        message = answer.json()["messages"][-1]
        assert message["files"] == ["pay.txt"] and message["text"] == ("" if item == "f" else "Who earns most?")
    filtered = cm.content_parts(cm.filtered_content((file,), "secret salaries"))
    created = message_created("", "h", "d").item
    await sessions.append("s", ev.ItemCreated(item=msgspec.structs.replace(created, content=filtered)))
    async with http_client(gateway) as client:
        answer = await client.get(f"/v1/shares/{(await shared(client))['token']}")
    assert "secret" not in answer.text and answer.json()["messages"][-1]["files"] == ["pay.txt"]


async def test_a_share_stays_as_it_was_but_for_what_is_taken_back(sessions: FakeSessions, gateway: Gateway) -> None:
    async with http_client(gateway) as client:
        token = (await shared(client))["token"]
        await sessions.append("s", message_created("later", "e", "d"), message_created("edited", "x", None))
        assert await texts(client, token) == ["how?", "so", "thanks"]
        taken = {"response_id": "", "item_id": "b", "content_index": 0, "start": 0, "end": 2, "replacement": "[gone]"}
        event = msgspec.convert({**taken, "category": "deleted", "type": "content.retracted"}, ev.ContentRetracted)
        await sessions.append("s", event)
        assert await texts(client, token) == ["how?", "[gone]", "thanks"]
        first = (await shared(client, item_id="a"))["token"]
        assert await texts(client, first) == ["how?"]


async def test_a_title_of_later_is_not_shown(sessions: FakeSessions, gateway: Gateway) -> None:
    info = ev.SessionInfo(model="m", title="Bread", metadata={"pinned": True}, created_at=UnixMs(1))
    async with http_client(gateway) as client:
        token = (await shared(client))["token"]
        titles = []
        for title in ("Bread", "Why I leave my employer", "Bread"):
            await sessions.append("s", ev.SessionUpdated(info=msgspec.structs.replace(info, title=title)))
            titles.append((await client.get(f"/v1/shares/{token}")).json()["title"])
    assert titles == ["Bread", None, None]


async def test_a_share_ends_at_once_when_it_is_revoked_or_its_session_deleted(
    sessions: FakeSessions, gateway: Gateway
) -> None:
    async with http_client(gateway) as client:
        one, two = await shared(client), await shared(client)
        path = f"/v1/sessions/s/shares/{one['id']}"
        deleted = {"object": "session.share.deleted", "id": one["id"], "deleted": True}
        assert (await client.delete(path)).json() == deleted
        assert (await client.delete(path)).status_code == 404
        assert (await texts(client, one["token"]), await texts(client, two["token"])) == (404, ["how?", "so", "thanks"])
        await sessions.append("s", ev.SessionDeleted(), deleted=True)
        assert await texts(client, two["token"]) == 404
        assert (await client.post("/v1/sessions/s/shares", json={})).status_code == 410
        unknown = (await client.get(f"/v1/shares/{'x' * 43}")).json()["error"]
        assert unknown == (await client.get(f"/v1/shares/{one['token']}")).json()["error"]
    rows = await gateway.store.audit.rows(TENANT, after=0, limit=9)
    assert [public(row)["action"] for row in rows] == ["session.shared", "session.shared", "session.unshared"]


async def test_an_answer_that_is_being_written_is_not_shared(sessions: FakeSessions, gateway: Gateway) -> None:
    first, added, *rest = begun("item_z")
    assert isinstance(first, ev.ResponseCreated) and isinstance(added, ev.OutputItemAdded)
    body = msgspec.structs.replace(first.response, parent_id=ItemId("d"))
    item = msgspec.structs.replace(added.item, parent_id=ItemId("d"))
    await sessions.append(
        "s", msgspec.structs.replace(first, response=body), msgspec.structs.replace(added, item=item), *rest
    )
    async with http_client(gateway) as client:
        refused = await client.post("/v1/sessions/s/shares", json={"item_id": "item_z"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "response_in_progress")
        assert (await shared(client))["item_id"] == "d"
        assert (await client.post("/v1/sessions/s/shares", json={"item_id": "nothing"})).status_code == 404
        await sessions.append("empty", ev.SessionCreated(info=ev.SessionInfo(model="m", created_at=UnixMs(1))))
        refused = await client.post("/v1/sessions/empty/shares", json={})
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "nothing_to_share")


async def test_a_tenant_that_shares_nothing_shows_nothing_either(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with http_client(gateway) as client:
        token = (await shared(client))["token"]
        monkeypatch.setitem(vars(gateway.sharing), "table", lambda _: TenantLimits(sharing=False))
        assert await texts(client, token) == 404
        refused = await client.post("/v1/sessions/s/shares", json={})
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "sharing_disabled")
        assert json.loads((await client.get("/v1/sessions/s/shares")).text)["data"]  # to be revoked


def test_looks_are_limited_by_address_and_reads_in_all() -> None:
    now = 0.0
    rate = ReadRate(lambda: now)
    for _ in range(READS_PER_ADDRESS):
        rate.take_look("127.0.0.1", b"one")
    with pytest.raises(Limited) as refused:
        rate.take_look("127.0.0.1", b"one")
    assert refused.value.retry_after_ms is not None and refused.value.retry_after_ms > 0
    rate.take_look("127.0.0.2", b"one")
    for number in range(READS_PER_MINUTE):
        rate.take_read(str(number).encode(), TenantId(f"t{number}"))
    with pytest.raises(Limited):
        rate.take_read(b"another", TENANT)
    with pytest.raises(Limited):
        rate.take_look("127.0.0.2", str(READS_PER_MINUTE - 1).encode())  # a read of what was there a moment ago
    now = 1.0
    rate.take_look("127.0.0.1", b"one")
    rate.take_read(b"one", TENANT)


def test_a_link_that_is_read_from_everywhere_takes_nobody_else_s_reads() -> None:
    rate = ReadRate(lambda: 0.0)
    hers, others = TenantId("hers"), TenantId("others")

    def reads(token: bytes, tenant: TenantId) -> int:
        """How often a link is read, from as many addresses as it takes."""
        for number in range(READS_PER_MINUTE):
            address = f"10.{token[0]}.{number // 250}.{number % 250}"
            try:
                rate.take_look(address, token)
                rate.take_read(token, tenant)
            except Limited:
                return number
        return READS_PER_MINUTE

    assert reads(b"1", hers) == READS_PER_SHARE
    assert sum(reads(bytes((number,)), hers) for number in range(2, 20)) == READS_PER_TENANT - READS_PER_SHARE
    assert reads(b"o", others) == READS_PER_SHARE


def test_guesses_from_everywhere_have_a_bound_that_who_has_a_token_does_not_meet() -> None:
    rate = ReadRate(lambda: 0.0)
    rate.take_look("127.0.0.1", b"good")
    rate.take_read(b"good", TENANT)
    for number in range(1, UNKNOWN_PER_MINUTE):
        rate.take_look(f"10.0.{number // 250}.{number % 250}", str(number).encode())
    with pytest.raises(Limited):
        rate.take_look("127.0.0.2", b"guess")
    rate.take_look("127.0.0.1", b"good")
    rate.forget(b"good")  # revoked
    with pytest.raises(Limited):
        rate.take_look("127.0.0.1", b"good")


# -- log reader
async def test_what_may_not_be_read() -> None:
    sessions = await memory_sessions()
    await sessions.append("s", created(), *begun(), delta("one ", 3))
    source = Source(sessions)
    feed = source.feeds.acquire(key_of("s"), Silent(), JSON).feed
    nothing = Principal(tenant=LOCAL_PRINCIPAL.tenant, key_id="k", scopes=())
    with pytest.raises(Forbidden):
        await source.logs.standing(nothing, feed, None, None)
    with pytest.raises(Forbidden):
        await source.logs.state(nothing, key_of("s"))
    with pytest.raises(NotFound):
        await source.logs.state(LOCAL_PRINCIPAL, key_of("nothing"))
    stranger = Principal(tenant=LOCAL_PRINCIPAL.tenant, key_id="k", user="eve")
    with pytest.raises(NotFound):
        await source.logs.state(stranger, key_of("s"))
    await sessions.append("s", ev.SessionDeleted(), deleted=True)
    with pytest.raises(Gone):
        await source.logs.state(LOCAL_PRINCIPAL, key_of("s"))
