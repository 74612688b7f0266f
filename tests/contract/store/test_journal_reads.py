"""The contract of the Journal port, on every implementation: pages, loads, lists, responses, usage, purge."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest

from persistence.postgres import purge as postgres_purge
from persistence.sqlite import transaction as sqlite_transaction
from sessions.billing.metering import UsageQuery
from sessions.model.errors import Fenced, NotFound, Unavailable
from sessions.model.events import Private, Record, ResponseBody, ResponseCreated, ResponseQueued
from sessions.model.journal_types import COMMANDS_LOADED_MAX, Due, ResponsePlace, Snapshot
from sessions.model.types import CommandId, ResponseId, Sampling, SessionKey, Status, TenantId, UnixMs
from sessions.ports import Journal
from sessions.store import Store
from tests.support.stores.journals import (
    ACME,
    DAY_MS,
    NOW,
    a_command,
    a_log,
    a_usage,
    an_append,
    delta,
    deltas,
    grant,
    key,
    patch,
    purge,
)


async def test_a_page_begins_behind_after_and_ends_at_the_limit(journal: Journal) -> None:
    await a_log(journal, "s", 20)
    await a_log(journal, "t", 5)
    for after, limit, expected in ((0, 100, range(1, 21)), (0, 7, range(1, 8)), (13, 4, range(14, 18)), (19, 9, [20])):
        page = await journal.read(key("s"), after=after, limit=limit, bytes_max=10**6)
        assert page is not None
        assert [r.offset for r in page.records] == list(expected)
        assert page.head.top == 20
    for after in (20, 99):
        page = await journal.read(key("s"), after=after, limit=9, bytes_max=10**6)
        assert page is not None and page.records == ()
    assert await journal.read(key("unknown"), after=0, limit=1, bytes_max=1) is None
    assert await journal.read(key("s", "other"), after=0, limit=1, bytes_max=1) is None


async def test_a_page_is_cut_by_bytes_with_one_record_at_least(journal: Journal) -> None:
    head = await grant(journal, key("s"))
    await journal.append(an_append(head, records=tuple(delta(n, "x" * 1000) for n in range(1, 31))))
    seen: list[int] = []
    while len(seen) < 30:
        page = await journal.read(key("s"), after=len(seen), limit=100, bytes_max=5000)
        assert page is not None
        assert 1 <= len(page.records) <= 6
        seen += [r.offset for r in page.records]
    assert seen == list(range(1, 31))
    page = await journal.read(key("s"), after=3, limit=100, bytes_max=1)
    assert page is not None and [r.offset for r in page.records] == [4]


async def test_load_gives_head_records_and_commands(journal: Journal) -> None:
    commands = tuple(a_command(n, at=NOW + n) for n in range(5))
    head = await a_log(journal, "s", 30, commands=commands)
    loaded = await journal.load(key("s"), now_ms=NOW)
    assert loaded is not None
    assert loaded.head == head
    assert loaded.snapshot is None
    assert loaded.records == deltas(0, 30)
    assert loaded.commands == commands
    assert loaded.commands_complete
    assert await journal.load(key("unknown"), now_ms=NOW) is None


async def test_load_begins_behind_the_newest_snapshot(journal: Journal) -> None:
    head = await a_log(journal, "s", 10, snapshot=Snapshot(4, b"\0first"))
    await journal.append(an_append(head, 5, snapshot=Snapshot(12, b"second\xff" * 1000)))
    loaded = await journal.load(key("s"), now_ms=NOW)
    assert loaded is not None
    assert loaded.snapshot == Snapshot(12, b"second\xff" * 1000)
    assert [r.offset for r in loaded.records] == [13, 14, 15]


async def test_load_sees_everything_that_was_acknowledged(journal: Journal) -> None:
    head = await grant(journal, key("s"))
    for top in range(40):
        await journal.append(an_append(head, 1, top=top, records=deltas(top, 1)))
        loaded = await journal.load(key("s"), now_ms=NOW)
        assert loaded is not None and len(loaded.records) == loaded.head.top == top + 1


async def test_load_gives_the_newest_commands_of_a_day(journal: Journal) -> None:
    head = await a_log(journal, "s", 1, commands=(a_command(99_999, at=NOW - DAY_MS - 1),))
    many = tuple(a_command(n, at=NOW + n // 3) for n in range(COMMANDS_LOADED_MAX + 5))
    await journal.append(an_append(head, commands=many[:COMMANDS_LOADED_MAX]))
    loaded = await journal.load(key("s"), now_ms=NOW)
    assert loaded is not None
    assert loaded.commands == many[:COMMANDS_LOADED_MAX] and loaded.commands_complete
    await journal.append(an_append(head, commands=many[COMMANDS_LOADED_MAX:]))
    loaded = await journal.load(key("s"), now_ms=NOW)
    assert loaded is not None
    assert loaded.commands == many[5:] and not loaded.commands_complete
    assert await journal.find_command(key("s"), "k1", many[0].command_id) == many[0]


async def test_a_command_is_found_by_principal_and_id(journal: Journal) -> None:
    await a_log(journal, "s", 1, commands=(a_command(1), a_command(1, principal="k2", at=NOW + 1), a_command(2)))
    await a_log(journal, "t", 1)
    find = journal.find_command
    assert await find(key("s"), "k1", CommandId("c00001")) == a_command(1)
    assert await find(key("s"), "k2", CommandId("c00001")) == a_command(1, principal="k2", at=NOW + 1)
    assert await find(key("s"), "k2", CommandId("c00002")) is None
    assert await find(key("t"), "k1", CommandId("c00001")) is None
    assert await find(key("s", "other"), "k1", CommandId("c00001")) is None


async def test_a_command_id_may_come_again_after_its_day(journal: Journal) -> None:
    head = await a_log(journal, "s", 1, commands=(a_command(1, at=NOW - 2 * DAY_MS),))
    await journal.append(an_append(head, commands=(a_command(1),)))
    assert await journal.find_command(key("s"), "k1", CommandId("c00001")) == a_command(1)


async def sessions_of(journal: Journal, **fields: Any) -> list[str]:
    arguments: dict[str, Any] = {"user": None, "limit": 100, "after": None, **fields}
    return [h.key.session for h in await journal.list_heads(arguments.pop("tenant", ACME), **arguments)]


async def test_listing_is_newest_first_by_user_and_in_pages(journal: Journal) -> None:
    for n in range(6):
        user = "odd" if n % 2 else None
        await a_log(journal, f"s{n}", 1, head=patch(user=user), at=UnixMs(NOW + 10 * (n // 2)))
    await a_log(journal, "foreign", 1, tenant="other", head=patch())
    assert await sessions_of(journal) == ["s4", "s5", "s2", "s3", "s0", "s1"]
    assert await sessions_of(journal, user="odd") == ["s5", "s3", "s1"]
    assert await sessions_of(journal, user="nobody") == []
    assert await sessions_of(journal, limit=2) == ["s4", "s5"]
    assert await sessions_of(journal, limit=3, after=key("s5")) == ["s2", "s3", "s0"]
    assert await sessions_of(journal, user="odd", limit=1, after=key("s5")) == ["s3"]
    assert await sessions_of(journal, after=key("s1")) == []
    assert await sessions_of(journal, tenant=TenantId("other")) == ["foreign"]


async def test_listing_leaves_out_the_empty_the_unlisted_and_the_deleted(journal: Journal) -> None:
    await grant(journal, key("empty"))
    await a_log(journal, "plain", 1)
    await a_log(journal, "unlisted", 1, head=patch(listed=False))
    await a_log(journal, "deleted", 1, head=patch(deleted_at=NOW))
    assert await sessions_of(journal) == ["plain"]


@pytest.mark.parametrize("after", [key("unknown"), key("foreign", "other")])
async def test_listing_after_an_unknown_session_is_not_found(journal: Journal, after: SessionKey) -> None:
    await a_log(journal, "s", 1)
    await a_log(journal, "foreign", 1, tenant="other")
    with pytest.raises(NotFound):
        await journal.list_heads(ACME, user=None, limit=5, after=after)


@pytest.mark.parametrize("owner", ["even", None])
async def test_a_user_lists_after_no_session_of_another(journal: Journal, owner: str | None) -> None:
    await a_log(journal, "own", 1, head=patch(user="odd"))
    await a_log(journal, "other", 1, head=patch(user=owner))
    assert await sessions_of(journal, user="odd", after=key("own")) == []
    with pytest.raises(NotFound):
        await journal.list_heads(ACME, user="odd", limit=5, after=key("other"))


async def test_open_heads_come_in_key_order_over_all_tenants(journal: Journal) -> None:
    for tenant in ("b", "a"):
        for session in ("2", "1", "3"):
            await a_log(journal, session, 1, tenant=tenant, head=patch(open=session != "3"))
    heads = await journal.open_heads(limit=10, after=None)
    assert [tuple(h.key) for h in heads] == [("a", "1"), ("a", "2"), ("b", "1"), ("b", "2")]
    assert heads[0].open and heads[0].top == 1
    heads = await journal.open_heads(limit=2, after=key("1", "a"))
    assert [tuple(h.key) for h in heads] == [("a", "2"), ("b", "1")]
    await journal.append(an_append(heads[0], 1, head=patch(open=False)))
    assert [tuple(h.key) for h in await journal.open_heads(limit=1, after=key("1", "a"))] == [("b", "1")]


async def test_usage_is_written_once_per_response(journal: Journal, store: Store) -> None:
    head = await a_log(journal, "s", 1, usage=(a_usage("r2", at=NOW + 2), a_usage("r1", at=NOW + 1)))
    await journal.append(an_append(head, 1, usage=(a_usage("r1", at=NOW + 1, output=999),)))
    await a_log(journal, "s", 1, tenant="other", usage=(a_usage("r1", tenant="other"),))
    rows = [entry.row for entry in await store.usage.of_session(key("s"))]
    assert rows == [a_usage("r2", at=NOW + 2), a_usage("r1", at=NOW + 1)]
    others = await store.usage.of_session(key("s", "other"))
    assert [entry.row for entry in others] == [a_usage("r1", tenant="other")]
    later = await store.usage.entries(UsageQuery(tenant=ACME, since=UnixMs(NOW + 2)), after=0, limit=10)
    assert [entry.row for entry in later] == rows[:1]


async def test_purge_erases_what_was_deleted_long_ago(journal: Journal, store: Store) -> None:
    gone = await a_log(
        journal,
        "gone",
        5000,
        head=patch(deleted_at=NOW),
        commands=(a_command(1),),
        usage=(a_usage("r1"),),
        snapshot=Snapshot(2, b"s"),
    )
    await a_log(journal, "later", 1, head=patch(deleted_at=NOW + 10))
    await a_log(journal, "alive", 1)
    await grant(journal, key("empty"), now=NOW)
    await grant(journal, key("claimed"), now=NOW + 10)
    purged = await purge(journal, Due(deleted_before=UnixMs(NOW + 1)), commands_before=UnixMs(0), limit=10)
    assert sorted(purged) == [key("empty"), key("gone")]
    for session in ("gone", "empty"):
        assert await journal.head(key(session)) is None
        assert await journal.read(key(session), after=0, limit=1, bytes_max=1) is None
        assert await journal.load(key(session), now_ms=NOW) is None
    assert await journal.find_command(key("gone"), "k1", CommandId("c00001")) is None
    for session in ("later", "alive", "claimed"):
        assert await journal.head(key(session)) is not None
    with pytest.raises(Fenced):
        await journal.append(an_append(gone, 1))
    assert len(await store.usage.of_session(key("gone"))) == 1, "bills outlive conversations"
    fresh = await a_log(journal, "gone", 2)
    assert fresh.top == 2
    loaded = await journal.load(key("gone"), now_ms=NOW)
    assert loaded is not None and loaded.snapshot is None and loaded.records == deltas(0, 2)


async def test_purge_erases_unlisted_sessions_that_fell_silent(journal: Journal) -> None:
    for name, listed, turn_open in (("silent", False, False), ("busy", False, True), ("listed", True, False)):
        await a_log(journal, name, 3, head=patch(listed=listed, open=turn_open))
    before = UnixMs(NOW - 1_000_000)
    assert await purge(journal, Due(deleted_before=before), commands_before=before, limit=9) == []
    assert (
        await purge(journal, Due(deleted_before=before, unlisted_before=before), commands_before=before, limit=9) == []
    )
    later = UnixMs(NOW + 1_000_000)
    purged = await purge(journal, Due(deleted_before=before, unlisted_before=later), commands_before=before, limit=9)
    assert purged == [key("silent")] and await journal.head(key("silent")) is None
    for name in ("busy", "listed"):
        assert await journal.head(key(name)) is not None


async def test_deleting_a_session_never_makes_it_stay_for_longer(journal: Journal) -> None:
    """Unlisted ones go after a day without a word, deleted or not; deleted ones when their time is over."""
    day_ago, month_ago = UnixMs(NOW - DAY_MS), UnixMs(NOW - 30 * DAY_MS)
    for name, listed in (("unlisted", False), ("listed", True)):
        head = await grant(journal, key(name), now=NOW - 3 * DAY_MS)
        about = patch(listed=listed, deleted_at=UnixMs(NOW - 2 * DAY_MS))
        await journal.append(an_append(head, 1, head=about, at=UnixMs(NOW - 2 * DAY_MS)))
    due = Due(deleted_before=month_ago, unlisted_before=day_ago)
    assert await purge(journal, due, commands_before=day_ago, limit=9) == [key("unlisted")]


async def test_idle_sessions_go_where_that_is_asked_for(journal: Journal) -> None:
    for name, turn_open, at in (("idle", False, NOW - 9), ("busy", True, NOW - 9), ("fresh", False, NOW)):
        await a_log(journal, name, 1, head=patch(open=turn_open), at=UnixMs(at))
    for name, tenant, fields in (
        ("unlisted", "acme", {"listed": False}),
        ("deleted", "acme", {"deleted_at": UnixMs(NOW - 9)}),
        ("others", "beta", {}),
        ("others", "gamma", {}),
    ):
        await a_log(journal, name, 1, tenant=tenant, head=patch(**fields), at=UnixMs(NOW - 9))
    none_deleted = UnixMs(0)
    assert await purge(journal, Due(deleted_before=none_deleted), commands_before=NOW, limit=9) == []
    due = Due(deleted_before=none_deleted, idle_before=UnixMs(NOW - 5))
    idle = [key("deleted"), key("idle"), key("unlisted"), key("others", "beta"), key("others", "gamma")]
    assert sorted(await purge(journal, due, commands_before=NOW, limit=9)) == idle


async def test_purge_is_of_one_tenant_or_of_all_but_some(journal: Journal) -> None:
    for tenant in ("acme", "beta", "gamma"):
        await a_log(journal, "s", 1, tenant=tenant, head=patch(deleted_at=UnixMs(NOW - 1)), at=UnixMs(NOW - 1))
    one = Due(deleted_before=NOW, idle_before=NOW, tenant=TenantId("beta"))
    assert await purge(journal, one, commands_before=NOW, limit=9) == [key("s", "beta")]
    others = Due(deleted_before=NOW, idle_before=NOW, besides=(ACME,))
    assert await purge(journal, others, commands_before=NOW, limit=9) == [key("s", "gamma")]
    assert await journal.head(key("s")) is not None


async def test_purge_takes_only_what_it_is_given_and_what_is_still_due(journal: Journal) -> None:
    """Between the list and the purge another replica may have purged a session, and somebody made it anew."""
    due = Due(deleted_before=UnixMs(NOW + 1), unlisted_before=UnixMs(NOW + 1))
    for name in ("gone", "again", "later"):
        await a_log(journal, name, 2, head=patch(deleted_at=NOW))
    spoken = await a_log(journal, "spoken", 1, head=patch(listed=False))
    listed = sorted(await journal.purgeable(due, limit=9))
    assert listed == [key(name) for name in ("again", "gone", "later", "spoken")]
    listed.remove(key("later"))
    assert await journal.purge([key("again")], due, commands_before=NOW, at=NOW) == [key("again")]
    await a_log(journal, "again", 1)
    await journal.append(an_append(spoken, 1, head=patch(listed=False), at=UnixMs(NOW + 5)))
    assert await journal.purge([*listed, key("unknown")], due, commands_before=NOW, at=NOW) == [key("gone")]
    for name, top in (("again", 1), ("later", 2), ("spoken", 2)):
        head = await journal.head(key(name))
        assert head is not None and head.top == top
    of_ann = Due(deleted_before=UnixMs(NOW + 1), tenant=ACME, user="ann")
    assert await journal.purge([key("later")], of_ann, commands_before=NOW, at=NOW) == [], "it is somebody else's"


async def test_purge_takes_no_more_than_its_limit(journal: Journal) -> None:
    for n in range(5):
        await a_log(journal, f"s{n}", 1, head=patch(deleted_at=NOW))
    assert len(await purge(journal, Due(deleted_before=UnixMs(NOW + 1)), commands_before=NOW, limit=2)) == 2
    assert len(await purge(journal, Due(deleted_before=UnixMs(NOW + 1)), commands_before=NOW, limit=9)) == 3
    assert await purge(journal, Due(deleted_before=UnixMs(NOW + 1)), commands_before=NOW, limit=9) == []


async def test_purge_forgets_old_commands(journal: Journal) -> None:
    commands = tuple(a_command(n, at=NOW - n) for n in range(10))
    await a_log(journal, "s", 1, commands=commands)
    await purge(journal, Due(deleted_before=UnixMs(0)), commands_before=UnixMs(NOW - 4), limit=1)
    loaded = await journal.load(key("s"), now_ms=NOW)
    assert loaded is not None and loaded.commands == commands[4::-1]


async def test_a_purge_that_is_cut_short_leaves_no_log_with_a_hole(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody goes on with a session whose log is being taken away, in transactions of a few rows each."""
    monkeypatch.setattr(sqlite_transaction, "PURGE_ROWS", 2)
    monkeypatch.setattr(postgres_purge, "PURGE_ROWS", 2)
    owned = await a_log(journal, "idle", 9)
    due = Due(deleted_before=UnixMs(0), idle_before=UnixMs(NOW + 1))

    def cut(*about: object) -> NoReturn:
        raise Unavailable("journal_unavailable", "killed")

    with monkeypatch.context() as killed:
        for module in (sqlite_transaction, postgres_purge):
            killed.setattr(module, "purged_row", cut)
        with pytest.raises(Unavailable):
            await purge(journal, due, commands_before=UnixMs(0), limit=9)
    head = await journal.head(owned.key)
    if head is not None and head.deleted_at is None:  # all of it stands
        page = await journal.read(owned.key, after=0, limit=99, bytes_max=1 << 20)
        assert page is not None and len(page.records) == 9
    else:
        with pytest.raises(Fenced):
            await journal.append(an_append(owned, 1))
    assert await purge(journal, due, commands_before=UnixMs(0), limit=9) == [owned.key]
    assert await journal.head(owned.key) is None


def begun(offset: int, response: str, status: Status = "in_progress") -> Record:
    response_id = ResponseId(response)
    body = ResponseBody(id=response_id, created_at=NOW, status=status, model="m", parent_id=None)
    kind = ResponseQueued if status == "queued" else ResponseCreated
    event = kind(response_id=response_id, sequence_number=0, response=body)
    return Record(offset, NOW, event, Private(sampling=Sampling(), after=ResponseId("resp_0")))


async def test_a_response_is_found_where_it_begins(journal: Journal) -> None:
    head = await a_log(journal, "s", 3)
    await journal.append(an_append(head, records=(begun(4, "resp_a"), delta(5), begun(6, "resp_b"))))
    await a_log(journal, "t", 1)
    assert await journal.find_response(ACME, ResponseId("resp_a")) == ResponsePlace(key("s"), 4)
    assert await journal.find_response(ACME, ResponseId("resp_b")) == ResponsePlace(key("s"), 6)
    assert await journal.find_response(ACME, ResponseId("resp_c")) is None


async def test_a_response_that_waited_stays_where_it_was_accepted(journal: Journal) -> None:
    head = await a_log(journal, "s", 1)
    await journal.append(an_append(head, records=(begun(2, "resp_a", "queued"),)))
    await journal.append(an_append(head, top=2, records=(begun(3, "resp_a"), begun(4, "resp_b", "queued"))))
    assert await journal.find_response(ACME, ResponseId("resp_a")) == ResponsePlace(key("s"), 2)
    assert await journal.find_response(ACME, ResponseId("resp_b")) == ResponsePlace(key("s"), 4)


async def test_responses_of_tenants_are_apart(journal: Journal) -> None:
    for tenant, session in ((ACME, "s"), ("other", "t")):
        head = await grant(journal, key(session, tenant))
        await journal.append(an_append(head, records=(begun(1, "resp_a"),)))
    assert await journal.find_response(ACME, ResponseId("resp_a")) == ResponsePlace(key("s"), 1)
    found = await journal.find_response(TenantId("other"), ResponseId("resp_a"))
    assert found == ResponsePlace(key("t", "other"), 1)
    assert await journal.find_response(TenantId("third"), ResponseId("resp_a")) is None


async def test_what_was_refused_or_purged_is_not_found(journal: Journal) -> None:
    head = await a_log(journal, "s", 1, head=patch(deleted_at=NOW))
    with pytest.raises(Fenced):
        await journal.append(an_append(head, top=7, records=(begun(8, "resp_lost"),)))
    assert await journal.find_response(ACME, ResponseId("resp_lost")) is None
    await journal.append(an_append(head, records=(begun(2, "resp_a"),)))
    assert await journal.find_response(ACME, ResponseId("resp_a")) is not None
    await purge(journal, Due(deleted_before=UnixMs(NOW + 1)), commands_before=UnixMs(0), limit=9)
    assert await journal.find_response(ACME, ResponseId("resp_a")) is None


async def test_what_a_tenant_and_a_user_have_is_counted(store: Store) -> None:
    journal, tallies = store.journal, store.tallies
    await a_log(journal, "a", 3, head=patch(user="ann"))
    await a_log(journal, "b", 2, head=patch(user="bob"))
    await a_log(journal, "hidden", 1, head=patch(user="ann", listed=False))
    await a_log(journal, "gone", 1, head=patch(user="ann", deleted_at=NOW))
    await grant(journal, key("claimed only"))
    await a_log(journal, "a", 5, tenant="other", head=patch(user="ann"))
    whole = await tallies.tally(ACME, user=None, stored=True)
    anns = await tallies.tally(ACME, user="ann", stored=True)
    assert (whole.sessions, anns.sessions) == (2, 1)
    assert 0 < anns.stored_bytes < whole.stored_bytes
    assert (await tallies.tally(ACME, user=None, stored=False)).stored_bytes == 0
    empty = await tallies.tally(TenantId("nobody"), user="ann", stored=True)
    assert (empty.sessions, empty.stored_bytes) == (0, 0)
