"""The contract of the Journal port, on every implementation: ownership, appends, life."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from persistence.group_commit import GroupLimits
from sessions.model.commands import Ok
from sessions.model.errors import BadInput, Fenced, SessileError, TooLarge, Unavailable
from sessions.model.events import ContextFitted, ItemCreated, Private, Record, ResponseBody, ResponseCompleted
from sessions.model.journal_types import CommandRecord, Due, Head, Snapshot
from sessions.model.types import CommandId, Epoch, InputText, ItemId, Message, ResponseId, Sampling, UnixMs
from sessions.ports import Journal
from sessions.store import Store
from tests.support.stores.journals import (
    ACME,
    BESIDE_A_STOP,
    NOW,
    Bed,
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


async def test_an_old_fence_appends_nothing(journal: Journal, store: Store) -> None:
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
    assert await store.usage.of_session(key("s")) == []
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
        journal, "s", 1, head=patch(title="Tïtle", metadata={"k": ["v", 1, None]}, user="u", open=True, listed=False)
    )
    assert (head.title, head.metadata, head.user, head.model) == ("Tïtle", {"k": ["v", 1, None]}, "u", "m")
    assert (head.open, head.listed, head.deleted_at) == (True, False, None)
    await journal.append(an_append(head, 1, head=patch(model="n", deleted_at=NOW)))
    stored = await journal.head(key("s"))
    assert stored is not None
    assert (stored.title, stored.metadata, stored.user, stored.model) == (None, {}, None, "n")
    assert (stored.open, stored.listed, stored.deleted_at) == (False, True, NOW)


async def test_an_append_that_is_too_large_is_refused_whole(bed: Bed) -> None:
    store = await bed.open(GroupLimits(write_bytes_max=10_000))
    journal = store.journal
    try:
        head = await grant(journal, key("s"))
        large = an_append(head, 2, commands=(a_command(1),), snapshot=Snapshot(2, b"s" * 20_000))
        with pytest.raises(TooLarge):
            await journal.append(large)
        with pytest.raises(TooLarge):
            await journal.append(an_append(head, records=(delta(1, "x" * 20_000),)))
        assert await journal.head(head.key) == head, "nothing happened"
        await journal.append(msgspec.structs.replace(large, snapshot=None))
        loaded = await journal.load(head.key, now_ms=NOW)
        assert loaded is not None and loaded.snapshot is None
        assert loaded.records == large.records and loaded.commands == large.commands
    finally:
        await store.close()


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


async def test_a_write_that_the_database_refuses_hurts_its_sender_alone(journal: Journal) -> None:
    heads = [await grant(journal, key(f"s{n}")) for n in range(3)]
    results = await asyncio.gather(
        journal.append(an_append(heads[0], 1)),
        journal.append(an_append(heads[1], top=2**70)),  # no column holds it
        journal.append(an_append(heads[2], 1)),
        return_exceptions=True,
    )
    assert results[0] is None and results[2] is None
    assert isinstance(results[1], SessileError) and results[1].code == "journal_refused"


async def test_what_was_acknowledged_is_there_after_a_reopen(bed: Bed) -> None:
    store = await bed.open()
    journal = store.journal
    incarnation = journal.incarnation
    await a_log(journal, "s", 3, commands=(a_command(1),), snapshot=Snapshot(1, b"x"), usage=(a_usage("r"),))
    last = await journal.head(key("s"))
    await store.close()
    store = await bed.open()
    journal = store.journal
    assert journal.incarnation == incarnation
    assert await journal.head(key("s")) == last
    loaded = await journal.load(key("s"), now_ms=NOW)
    assert loaded is not None
    assert (loaded.snapshot, loaded.commands) == (Snapshot(1, b"x"), (a_command(1),))
    assert loaded.records == deltas(0, 3)[1:]
    assert [entry.row for entry in await store.usage.of_session(key("s"))] == [a_usage("r")]
    head = await grant(journal, key("s"), 1, epoch="e2")
    assert (head.epoch, head.fence) == ("e1", 2)
    await store.close()


async def test_close_finishes_what_was_accepted_and_refuses_the_rest(bed: Bed) -> None:
    store = await bed.open()
    journal = store.journal
    head = await a_log(journal, "s", 1)
    accepted = asyncio.ensure_future(journal.append(an_append(head, 1)))
    await asyncio.sleep(0)
    await store.close()
    await accepted
    await store.close()
    with pytest.raises(Unavailable):
        await journal.append(an_append(head, 1))
    for call in (
        journal.head(key("s")),
        journal.read(key("s"), after=0, limit=1, bytes_max=1),
        journal.load(key("s"), now_ms=NOW),
        journal.find_command(key("s"), "k", CommandId("c")),
        journal.list_heads(ACME, user=None, limit=1, after=None),
        journal.open_heads(limit=1, after=None),
        purge(journal, Due(deleted_before=NOW), commands_before=NOW, limit=1),
        grant(journal, key("s"), 1),
    ):
        with pytest.raises(Unavailable):
            await call
    store = await bed.open()
    journal = store.journal
    stored = await journal.head(key("s"))
    assert stored is not None and stored.top == 2
    await store.close()


@BESIDE_A_STOP
async def test_a_restored_backup_is_a_new_incarnation_with_new_fences_and_epochs(bed: Bed) -> None:
    store = await bed.open()
    journal = store.journal
    old = await a_log(journal, "s", 3)
    incarnation = journal.incarnation
    await store.close()
    await bed.backup()
    store = await bed.open()
    journal = store.journal
    assert journal.incarnation == incarnation
    await journal.append(an_append(old, 2))
    await store.close()
    await bed.restore()
    store = await bed.open()
    journal = store.journal
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
    await store.close()
