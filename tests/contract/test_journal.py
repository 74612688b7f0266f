"""The contract of the Journal port, on every implementation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sessions.commands import Ok
from sessions.errors import BadInput, Fenced, NotFound, Unavailable
from sessions.events import (
    ContextFitted,
    ItemCreated,
    OutputTextDelta,
    Private,
    Record,
    ResponseBody,
    ResponseCompleted,
)
from sessions.ports import COMMANDS_LOADED_MAX, Append, CommandRecord, Head, HeadPatch, Journal, Snapshot, UsageRow
from sessions.types import (
    CommandId,
    Epoch,
    InputText,
    ItemId,
    Message,
    Principal,
    ResponseId,
    Sampling,
    SessionId,
    SessionKey,
    TenantId,
    UnixMs,
    Usage,
    pack_tokens,
)
from tests.contract.journals import KINDS, Bed, a_bed

NOW = UnixMs(1_750_000_000_000)
DAY_MS = 24 * 3600 * 1000
ACME = TenantId("acme")


@pytest.fixture(params=KINDS)
async def bed(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bed]:
    async with a_bed(request.param, tmp_path) as made:
        yield made


@pytest.fixture
async def journal(bed: Bed) -> AsyncIterator[Journal]:
    opened = await bed.open()
    yield opened
    await opened.close()


def key(session: str, tenant: str = ACME) -> SessionKey:
    return SessionKey(TenantId(tenant), SessionId(session))


def delta(offset: int, text: str = "word ") -> Record:
    event = OutputTextDelta(
        response_id=ResponseId("resp_1"),
        sequence_number=offset,
        item_id=ItemId("msg_1"),
        output_index=0,
        content_index=0,
        delta=text,
    )
    return Record(offset, UnixMs(NOW + offset), event, Private(tokens=pack_tokens([offset, offset + 1])))


def deltas(top: int, count: int) -> tuple[Record, ...]:
    return tuple(delta(top + n) for n in range(1, count + 1))


def patch(**fields: Any) -> HeadPatch:
    return HeadPatch(**{"open": False, "user": None, "model": "m", "title": None, "metadata": {}, **fields})


def an_append(head: Head, count: int = 0, /, **fields: Any) -> Append:
    return Append(
        **{
            "key": head.key,
            "fence": head.fence,
            "top": head.top,
            "records": deltas(head.top, count),
            "at": NOW,
            **fields,
        }
    )


def a_command(number: int, *, at: int = NOW, principal: str = "k1") -> CommandRecord:
    return CommandRecord(
        principal_id=principal,
        command_id=CommandId(f"c{number:05}"),
        digest=bytes([number % 256]) * 16,
        answer=Ok(id=CommandId(f"c{number:05}"), offset=number, item_id=ItemId("msg_é")),
        at=UnixMs(at),
    )


def a_usage(response: str, *, at: int = NOW, tenant: str = ACME, output: int = 7) -> UsageRow:
    return UsageRow(
        response_id=ResponseId(response),
        principal=Principal(tenant=TenantId(tenant), key_id="k1", user="ü", role="service"),
        model="m",
        usage=Usage(input_tokens=5, output_tokens=output, cached_tokens=3, reasoning_tokens=1),
        status="completed",
        recomputed_tokens=2,
        withheld_tokens=4,
        at=UnixMs(at),
    )


async def grant(
    journal: Journal, at: SessionKey, fence: int | None = None, *, now: int = NOW, epoch: str = "e1"
) -> Head:
    return await journal.grant(at, expected_fence=fence, owner=f"r/{fence}", new_epoch=Epoch(epoch), now_ms=UnixMs(now))


async def a_log(journal: Journal, session: str, count: int = 3, *, tenant: str = ACME, **fields: Any) -> Head:
    """A session with `count` records; its head as it stands."""
    head = await grant(journal, key(session, tenant))
    await journal.append(an_append(head, count, **fields))
    stored = await journal.head(head.key)
    assert stored is not None
    return stored


# -- grants -------------------------------------------------------------------------------------------------------


async def test_a_first_grant_makes_the_head(journal: Journal) -> None:
    head = await grant(journal, key("s"))
    assert head == Head(
        key=key("s"),
        epoch=Epoch("e1"),
        fence=1,
        incarnation=journal.incarnation,
        top=0,
        owner="r/None",
        created_at=NOW,
        updated_at=NOW,
    )
    assert await journal.head(key("s")) == head


async def test_a_grant_takes_the_next_fence_and_keeps_the_epoch(journal: Journal) -> None:
    await a_log(journal, "s", 3, head=patch(title="T", metadata={"a": 1}, user="u", open=True))
    head = await grant(journal, key("s"), 1, epoch="e2", now=NOW + 5)
    assert (head.fence, head.epoch, head.top, head.owner) == (2, "e1", 3, "r/1")
    assert (head.title, head.metadata, head.user, head.open) == ("T", {"a": 1}, "u", True)
    assert head.updated_at == NOW and head.created_at == NOW


@pytest.mark.parametrize("expected", [None, 0, 2, 3])
async def test_a_grant_with_another_fence_is_refused(journal: Journal, expected: int | None) -> None:
    before = await a_log(journal, "s")
    with pytest.raises(Fenced):
        await grant(journal, key("s"), expected)
    assert await journal.head(key("s")) == before


async def test_a_grant_of_an_unknown_session_needs_no_fence(journal: Journal) -> None:
    with pytest.raises(Fenced):
        await grant(journal, key("s"), 1)
    assert await journal.head(key("s")) is None


async def test_of_many_claimants_one_wins(journal: Journal) -> None:
    for expected, fence in ((None, 1), (1, 2)):
        results = await asyncio.gather(*(grant(journal, key("s"), expected) for _ in range(20)), return_exceptions=True)
        heads = [r for r in results if isinstance(r, Head)]
        assert [h.fence for h in heads] == [fence]
        assert sum(isinstance(r, Fenced) for r in results) == 19


# -- appends (I1, I2) -----------------------------------------------------------------------------------------------


async def test_what_was_appended_is_read_back_whole(journal: Journal) -> None:
    message = Message(
        id=ItemId("msg_1"),
        parent_id=None,
        role="user",
        content=(InputText("Grüße 🌍 \0 end"),),
        status="completed",
        created_at=NOW,
    )
    body = ResponseBody(
        id=ResponseId("resp_1"),
        created_at=NOW,
        status="completed",
        model="m",
        parent_id=ItemId("msg_1"),
        output=(message,),
        usage={"input_tokens": 5},
    )
    records = (
        Record(1, NOW, ItemCreated(item=message), Private(tokens=b"\0\xff", fingerprint="f")),
        delta(2, "x" * 10_000),
        Record(3, NOW, ContextFitted(response_id=ResponseId("resp_1"), dropped=2), Private(cut=ItemId("msg_0"))),
        Record(
            4,
            NOW,
            ResponseCompleted(response_id=ResponseId("resp_1"), sequence_number=3, response=body),
            Private(sampling=Sampling(seed=2**53 - 1, stop=("a", "b"))),
        ),
        Record(5, NOW, ItemCreated(item=message)),
    )
    head = await grant(journal, key("s"))
    await journal.append(an_append(head, records=records))
    page = await journal.read(key("s"), after=0, limit=100, bytes_max=10**6)
    assert page is not None
    assert page.records == records
    assert page.head.top == 5


async def test_an_append_moves_the_top_and_only_from_there(journal: Journal) -> None:
    head = await a_log(journal, "s", 3)
    assert head.top == 3
    await journal.append(an_append(head, 2))
    for top in (0, 2, 3, 4, 6):
        with pytest.raises(Fenced):
            await journal.append(an_append(head, 1, top=top, records=deltas(top, 1)))
    page = await journal.read(key("s"), after=0, limit=100, bytes_max=10**6)
    assert page is not None and page.records == deltas(0, 5) and page.head.top == 5


async def test_an_old_fence_appends_nothing(journal: Journal) -> None:
    old = await a_log(journal, "s", 3)
    new = await grant(journal, key("s"), old.fence)
    beside: dict[str, Any] = {
        "head": patch(title="stolen"),
        "commands": (a_command(1),),
        "usage": (a_usage("resp_1"),),
        "snapshot": Snapshot(3, b"old"),
    }
    for zombie in (an_append(old, 1, **beside), an_append(old, 0, **beside)):
        with pytest.raises(Fenced):
            await journal.append(zombie)
    assert await journal.head(key("s")) == new
    loaded = await journal.load(key("s"), now_ms=NOW)
    assert loaded is not None
    assert (loaded.records, loaded.snapshot, loaded.commands) == (deltas(0, 3), None, ())
    assert await journal.read_usage(ACME, since=UnixMs(0), limit=10) == []
    await journal.append(an_append(new, 1))


async def test_an_append_to_an_unknown_session_is_refused(journal: Journal) -> None:
    head = await grant(journal, key("s"))
    with pytest.raises(Fenced):
        await journal.append(an_append(head, 1, key=key("other")))
    with pytest.raises(Fenced):
        await journal.append(an_append(head, 1, key=key("s", "another tenant")))


async def test_an_append_without_records_writes_what_stands_beside(journal: Journal) -> None:
    head = await a_log(journal, "s", 2)
    await journal.append(an_append(head, commands=(a_command(1),), head=patch(title="new"), at=UnixMs(NOW + 9)))
    stored = await journal.head(key("s"))
    assert stored is not None
    assert (stored.top, stored.title, stored.updated_at) == (2, "new", NOW + 9)
    assert await journal.find_command(key("s"), "k1", CommandId("c00001")) == a_command(1)


async def test_a_head_patch_replaces_every_descriptive_field(journal: Journal) -> None:
    head = await a_log(
        journal,
        "s",
        1,
        head=patch(title="Tïtle", metadata={"k": ["v", 1, None]}, user="u", open=True, listed=False),
    )
    assert (head.title, head.metadata, head.user, head.model) == ("Tïtle", {"k": ["v", 1, None]}, "u", "m")
    assert (head.open, head.listed, head.deleted_at) == (True, False, None)
    await journal.append(an_append(head, 1, head=patch(model="n", deleted_at=NOW)))
    stored = await journal.head(key("s"))
    assert stored is not None
    assert (stored.title, stored.metadata, stored.user, stored.model) == (None, {}, None, "n")
    assert (stored.open, stored.listed, stored.deleted_at) == (False, True, NOW)


async def test_appends_of_many_sessions_are_answered_each_by_itself(journal: Journal) -> None:
    heads = [await a_log(journal, f"s{n:03}", 1) for n in range(60)]
    for stale in heads[::3]:
        await grant(journal, stale.key, stale.fence)
    results = await asyncio.gather(
        *(journal.append(an_append(head, 1 + n % 4)) for n, head in enumerate(heads)), return_exceptions=True
    )
    for n, (head, result) in enumerate(zip(heads, results, strict=True)):
        stored = await journal.head(head.key)
        assert stored is not None
        if n % 3 == 0:
            assert isinstance(result, Fenced)
            assert stored.top == 1
        else:
            assert result is None
            assert stored.top == 2 + n % 4


async def test_of_two_appends_at_the_same_top_one_stands(journal: Journal) -> None:
    head = await a_log(journal, "s", 1)
    results = await asyncio.gather(*(journal.append(an_append(head, 1)) for _ in range(10)), return_exceptions=True)
    assert results.count(None) == 1
    assert sum(isinstance(r, Fenced) for r in results) == 9
    stored = await journal.head(key("s"))
    assert stored is not None and stored.top == 2


async def test_a_grant_among_appends_never_splits_the_log(journal: Journal) -> None:
    """Whatever the order, the appends that were answered well are exactly the records that stand."""
    head = await a_log(journal, "s", 1)
    tops = range(1, 8)
    calls: list[Any] = [journal.append(an_append(head, 1, top=top, records=deltas(top, 1))) for top in tops]
    calls.insert(3, grant(journal, key("s"), head.fence))
    results = await asyncio.gather(*calls, return_exceptions=True)
    new = results.pop(3)
    assert isinstance(new, Head)
    stood = results.count(None)
    assert new.top == 1 + stood
    assert all(result is None for result in results[:stood])
    assert all(isinstance(result, Fenced) for result in results[stood:])
    page = await journal.read(key("s"), after=0, limit=100, bytes_max=10**6)
    assert page is not None and page.records == deltas(0, new.top)


async def test_a_cancelled_append_leaves_the_journal_whole(journal: Journal) -> None:
    head = await a_log(journal, "s", 1)
    for turns in range(12):
        task = asyncio.ensure_future(journal.append(an_append(head, 1)))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await a_log(journal, f"other{turns}")  # goes through the same writer, behind the cancelled one
        stored = await journal.head(key("s"))
        assert stored is not None
        page = await journal.read(key("s"), after=0, limit=100, bytes_max=10**6)
        assert page is not None and page.records == deltas(0, stored.top)
        assert stored.top in (head.top, head.top + 1)
        head = stored
    await journal.append(an_append(head, 1))


@pytest.mark.parametrize("bad", ["a\0b", "a\ud800b"])
async def test_text_that_cannot_be_stored_hurts_its_sender_alone(journal: Journal, bad: str) -> None:
    head = await a_log(journal, "s", 1)
    other = await a_log(journal, "t", 1)
    command = CommandRecord(
        principal_id="k", command_id=CommandId(bad), digest=b"", answer=Ok(id=CommandId("x")), at=NOW
    )
    refused, stood = await asyncio.gather(
        journal.append(an_append(head, 1, commands=(command,))),
        journal.append(an_append(other, 1)),
        return_exceptions=True,
    )
    assert isinstance(refused, BadInput)
    assert stood is None
    await journal.append(an_append(head, 1))


# -- reading ------------------------------------------------------------------------------------------------------


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


# -- lists --------------------------------------------------------------------------------------------------------


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


async def test_usage_is_written_once_per_response_and_read_by_tenant_and_time(journal: Journal) -> None:
    head = await a_log(journal, "s", 1, usage=(a_usage("r2", at=NOW + 2), a_usage("r1", at=NOW + 1)))
    await journal.append(an_append(head, 1, usage=(a_usage("r1", at=NOW + 1, output=999),)))
    await a_log(journal, "t", 1, tenant="other", usage=(a_usage("r1", tenant="other"),))
    rows = await journal.read_usage(ACME, since=NOW, limit=10)
    assert rows == [a_usage("r1", at=NOW + 1), a_usage("r2", at=NOW + 2)]
    assert await journal.read_usage(ACME, since=UnixMs(NOW + 2), limit=10) == rows[1:]
    assert await journal.read_usage(ACME, since=NOW, limit=1) == rows[:1]
    assert await journal.read_usage(TenantId("other"), since=NOW, limit=10) == [a_usage("r1", tenant="other")]


# -- purge --------------------------------------------------------------------------------------------------------


async def test_purge_erases_what_was_deleted_long_ago(journal: Journal) -> None:
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
    purged = await journal.purge(deleted_before=UnixMs(NOW + 1), commands_before=UnixMs(0), limit=10)
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
    assert len(await journal.read_usage(ACME, since=UnixMs(0), limit=10)) == 1, "bills outlive conversations"
    fresh = await a_log(journal, "gone", 2)
    assert fresh.top == 2
    loaded = await journal.load(key("gone"), now_ms=NOW)
    assert loaded is not None and loaded.snapshot is None and loaded.records == deltas(0, 2)


async def test_purge_takes_no_more_than_its_limit(journal: Journal) -> None:
    for n in range(5):
        await a_log(journal, f"s{n}", 1, head=patch(deleted_at=NOW))
    assert len(await journal.purge(deleted_before=UnixMs(NOW + 1), commands_before=NOW, limit=2)) == 2
    assert len(await journal.purge(deleted_before=UnixMs(NOW + 1), commands_before=NOW, limit=9)) == 3
    assert await journal.purge(deleted_before=UnixMs(NOW + 1), commands_before=NOW, limit=9) == []


async def test_purge_forgets_old_commands(journal: Journal) -> None:
    commands = tuple(a_command(n, at=NOW - n) for n in range(10))
    await a_log(journal, "s", 1, commands=commands)
    await journal.purge(deleted_before=UnixMs(0), commands_before=UnixMs(NOW - 4), limit=1)
    loaded = await journal.load(key("s"), now_ms=NOW)
    assert loaded is not None and loaded.commands == commands[4::-1]


# -- life ---------------------------------------------------------------------------------------------------------


async def test_what_was_acknowledged_is_there_after_a_reopen(bed: Bed) -> None:
    journal = await bed.open()
    incarnation = journal.incarnation
    await a_log(journal, "s", 3, commands=(a_command(1),), snapshot=Snapshot(1, b"x"), usage=(a_usage("r"),))
    last = await journal.head(key("s"))
    await journal.close()
    journal = await bed.open()
    assert journal.incarnation == incarnation
    assert await journal.head(key("s")) == last
    loaded = await journal.load(key("s"), now_ms=NOW)
    assert loaded is not None
    assert (loaded.snapshot, loaded.commands) == (Snapshot(1, b"x"), (a_command(1),))
    assert loaded.records == deltas(0, 3)[1:]
    assert await journal.read_usage(ACME, since=NOW, limit=1) == [a_usage("r")]
    head = await grant(journal, key("s"), 1, epoch="e2")
    assert (head.epoch, head.fence) == ("e1", 2)
    await journal.close()


async def test_close_finishes_what_was_accepted_and_refuses_the_rest(bed: Bed) -> None:
    journal = await bed.open()
    head = await a_log(journal, "s", 1)
    accepted = asyncio.ensure_future(journal.append(an_append(head, 1)))
    await asyncio.sleep(0)
    await journal.close()
    await accepted
    await journal.close()
    with pytest.raises(Unavailable):
        await journal.append(an_append(head, 1))
    for call in (
        journal.head(key("s")),
        journal.read(key("s"), after=0, limit=1, bytes_max=1),
        journal.load(key("s"), now_ms=NOW),
        journal.find_command(key("s"), "k", CommandId("c")),
        journal.list_heads(ACME, user=None, limit=1, after=None),
        journal.open_heads(limit=1, after=None),
        journal.read_usage(ACME, since=NOW, limit=1),
        journal.purge(deleted_before=NOW, commands_before=NOW, limit=1),
        grant(journal, key("s"), 1),
    ):
        with pytest.raises(Unavailable):
            await call
    journal = await bed.open()
    stored = await journal.head(key("s"))
    assert stored is not None and stored.top == 2
    await journal.close()


async def test_a_restored_backup_is_a_new_incarnation_with_new_fences_and_epochs(bed: Bed) -> None:
    journal = await bed.open()
    old = await a_log(journal, "s", 3)
    incarnation = journal.incarnation
    await journal.close()
    await bed.backup()
    journal = await bed.open()
    assert journal.incarnation == incarnation
    await journal.append(an_append(old, 2))
    await journal.close()
    await bed.restore()
    journal = await bed.open()
    assert journal.incarnation != incarnation
    head = await journal.head(key("s"))
    assert head is not None
    assert (head.top, head.incarnation, head.epoch) == (3, incarnation, "e1")
    with pytest.raises(Fenced):  # its fence is of the lost continuity, though the number would have fitted
        await journal.append(an_append(old, 1))
    new = await grant(journal, key("s"), head.fence, epoch="e2")
    assert (new.epoch, new.incarnation, new.top) == ("e2", journal.incarnation, 3)
    await journal.append(an_append(new, 1))
    again = await grant(journal, key("s"), new.fence, epoch="e3")
    assert again.epoch == "e2"
    await journal.close()
