"""Writes of a store are encoded, checked, counted and committed in groups."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistence.codec import (
    KeyNotLoaded,
    PlainCodec,
    decode_command,
    decode_head_body,
    decode_ok,
    decode_record,
    encode_command,
    encode_ok,
    encode_record,
    seal_text,
    sealed_key_id,
    unseal_text,
    with_keys,
)
from persistence.group_commit import GroupCommit, GroupLimits, Write
from persistence.validation import check_append, check_key, check_text
from persistence.write_batch import AppendWrite, GrantWrite
from sessions.model.audit import Sealer
from sessions.model.commands import Ok
from sessions.model.errors import BadInput, Internal, OutcomeUnknown, Overloaded, TooLarge, Unavailable
from sessions.model.events import OutputTextDelta, Private, ProgramCalled, ProgramReturned, Record
from sessions.model.journal_types import Append
from sessions.model.types import CommandId, Epoch, ItemId, ResponseId, Sampling, SessionId, SessionKey, TenantId, UnixMs
from tests.support.stores.journals import NOW, a_command, a_usage, delta, key, patch
from tests.support.stores.review_cases import a_case
from tests.support.virtual_time import virtual

KEY = SessionKey(TenantId("t"), SessionId("s"))
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=50)


@given(
    offset=st.integers(1, 2**53 - 1),
    at=st.integers(0, 2**53 - 1),
    text=texts,
    tokens=st.binary(max_size=40),
    seed=st.none() | st.integers(0, 2**53 - 1),
)
def test_a_record_comes_back_equal(offset: int, at: int, text: str, tokens: bytes, seed: int | None) -> None:
    event = OutputTextDelta(
        response_id=ResponseId("r"), sequence_number=0, item_id=ItemId("i"), output_index=0, content_index=0, delta=text
    )
    private = Private(tokens=tokens, tail=text, sampling=Sampling(seed=seed))
    for record in (Record(offset, UnixMs(at), event, private), Record(offset, UnixMs(at), event)):
        assert decode_record(offset, encode_record(record)) == record


# What version 1 looks like on a disk today. These bytes stand in logs: they may never stop being readable.
RECORD_1 = bytes.fromhex(
    "0193cd03e887a474797065ba" + b"response.output_text.delta".hex() + "ab" + b"response_id".hex() + "a172"
    "af" + b"sequence_number".hex() + "07a7" + b"item_id".hex() + "a169ac" + b"output_index".hex() + "00"
    "ad" + b"content_index".hex() + "00a5" + b"delta".hex() + "a2686981a6" + b"tokens".hex() + "c40401000000"
)  # fmt: skip


def test_version_1_is_still_readable() -> None:
    record = decode_record(9, RECORD_1)
    event = OutputTextDelta(
        response_id=ResponseId("r"), sequence_number=7, item_id=ItemId("i"), output_index=0, content_index=0, delta="hi"
    )
    assert record == Record(9, UnixMs(1000), event, Private(tokens=b"\x01\0\0\0"))


def test_records_of_programs_are_still_readable_without_their_snapshots() -> None:
    """Written by a release that ran programs; what only their interpreter needed is left out."""
    called = (
        b"\x01\x93\xcd\x03\xe8\x87\xa4type\xaeprogram.called\xabresponse_id\xa1r\xa7call_id\xa3c.1\xafprogram_call_id"
        b"\xa1c\xa7item_id\xa1i\xa4name\xa4look\xa9arguments\xa2{}\x81\xa7program\x85\xa7version\xa7monty 1\xa5chain"
        b"\xc4\x01c\xa6digest\xc4\x01d\xa8snapshot\xc4\x01s\xa7printed\xa1p"
    )
    returned = (
        b"\x01\x93\xcd\x03\xe8\x84\xa4type\xb0program.returned\xabresponse_id\xa1r\xa7call_id\xa3c.1\xa8is_error\xc2"
        b"\x81\xa6output\xa4blue"
    )
    record = decode_record(9, called)
    assert isinstance(record.event, ProgramCalled) and record.event.name == "look" and record.private == Private()
    record = decode_record(9, returned)
    assert isinstance(record.event, ProgramReturned) and record.private == Private()


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"\x01",
        b"\x02" + RECORD_1[1:],
        b"\xff" + RECORD_1[1:],
        RECORD_1[:-1],
        RECORD_1[:40],
        b"\x01\x93\x01\x02\x03",
    ],
)
def test_bytes_that_are_no_body_are_refused(damaged: bytes) -> None:
    for decode in (lambda data: decode_record(1, data), decode_head_body, decode_ok):
        with pytest.raises(Internal) as caught:
            decode(damaged)
        assert caught.value.code == "body_unreadable"


def test_the_plain_codec_refuses_a_body_that_was_encrypted() -> None:
    codec = PlainCodec()
    assert codec.encode(KEY, 1, b"abc") == ("", b"abc")
    assert codec.decode(KEY, 1, "", b"abc") == b"abc"
    with pytest.raises(Internal):
        codec.decode(KEY, 1, "key1", b"abc")


def test_a_text_comes_back_and_damage_is_noticed() -> None:
    codec = PlainCodec()
    assert seal_text(codec, KEY, "r", "") == b"" and unseal_text(codec, KEY, "r", b"") == ""
    assert unseal_text(codec, KEY, "r", seal_text(codec, KEY, "r", "ü")) == "ü"
    assert sealed_key_id(seal_text(codec, KEY, "r", "ü")) == sealed_key_id(b"") == sealed_key_id(RECORD_1) == ""
    assert sealed_key_id(msgspec.msgpack.encode(("k1", b"x"))) == "k1"
    for damaged in (b"x", msgspec.msgpack.encode(("", b"\xff"))):
        with pytest.raises(Internal):
            unseal_text(codec, KEY, "r", damaged)
    with pytest.raises(Internal):
        sealed_key_id(b"\x92x")


CASE = a_case("a")


@pytest.mark.parametrize("text", ["a\0b", "\ud800", "ü\udfff"])
def test_text_that_some_store_cannot_hold_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        check_text("fine", None, text)


def test_other_text_passes() -> None:
    check_text(None, "", "plain", "ü🙂")
    check_key(key("s"))
    with pytest.raises(AssertionError):
        check_key(key(""))


def an_append(**fields: object) -> Append:
    return Append(**{"key": key("s"), "fence": 1, "top": 4, "at": NOW, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "fields",
    [
        {"records": (delta(6),)},
        {"records": (delta(5), delta(7))},
        {"usage": (a_usage("r", tenant="beta"),)},
        {"reviews": (msgspec.structs.replace(CASE, key=key("other")),)},
    ],
    ids=["a hole before", "a hole inside", "usage of another tenant", "a case of another session"],
)
def test_an_append_that_is_our_own_mistake_is_asserted(fields: dict[str, object]) -> None:
    with pytest.raises(AssertionError):
        check_append(an_append(**fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"head": patch(user="\0")},
        {"commands": (a_command(1, principal="\0"),)},
        {"usage": (msgspec.structs.replace(a_usage("r"), model="\0"),)},
        {"reviews": (msgspec.structs.replace(CASE, note="\0"),)},
    ],
    ids=["head", "command", "usage", "case"],
)
def test_texts_of_an_append_are_checked(fields: dict[str, object]) -> None:
    with pytest.raises(BadInput):
        check_append(an_append(**fields))
    check_append(an_append(records=(delta(5), delta(6)), head=patch(), usage=(a_usage("r"),), reviews=(CASE,)))


CODEC = PlainCodec()


def a_write(bytes_max: int = 10_000, **fields: object) -> AppendWrite:
    append = Append(**{"key": key("s"), "fence": 1, "top": 0, "at": NOW, **fields})  # type: ignore[arg-type]
    return AppendWrite(CODEC, append, sealer=Sealer(b"secret"), bytes_max=bytes_max)


def test_what_cannot_be_stored_fails_where_it_is_made() -> None:
    with pytest.raises(TooLarge):
        a_write(100, records=(delta(1, "x" * 200),))
    with pytest.raises(BadInput):
        a_write(head=patch(user="\0"))
    with pytest.raises(BadInput):
        GrantWrite(CODEC, key("s"), None, "o\0", Epoch("e"), NOW)


def a_queued_write(session: str, *, rows: int = 1, size: int = 1) -> Write:
    return Write(SessionKey(TenantId("t"), SessionId(session)), rows=rows, size=size)


class Store:
    """Takes batches one after another; each waits for `gate` where one is set."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.gate: asyncio.Event | None = None
        self.entered = asyncio.Event()
        self.results: dict[str, Any] = {}

    async def commit(self, writes: Sequence[Write]) -> list[object]:
        self.batches.append([write.key.session for write in writes])
        self.entered.set()
        if self.gate is not None:
            await self.gate.wait()
        return [self.results.get(write.key.session) for write in writes]


def a_group(store: Store, **limits: Any) -> GroupCommit:
    group = GroupCommit(store.commit, GroupLimits(**{"pace_s": 0.0, **limits}))
    group.start()
    return group


def submit(group: GroupCommit, *writes: Write) -> list[asyncio.Future[Any]]:
    return [asyncio.ensure_future(group.submit(write)) for write in writes]


async def behind_the_gate(store: Store, group: GroupCommit, *writes: Write) -> list[asyncio.Future[Any]]:
    """Puts writes into the queue while a first batch is being committed; the caller opens the gate."""
    store.gate = asyncio.Event()
    tasks = submit(group, a_queued_write("first"))
    await store.entered.wait()
    tasks += submit(group, *writes)
    await asyncio.sleep(0)
    return tasks


async def test_what_comes_during_a_commit_is_the_next_batch_and_a_session_is_in_it_once() -> None:
    store = Store()
    group = a_group(store)
    tasks = await behind_the_gate(store, group, *(a_queued_write(s) for s in ("b", "a", "b", "c", "b", "a")))
    assert store.gate is not None
    store.gate.set()
    await asyncio.gather(*tasks)
    assert store.batches == [["first"], ["a", "b", "c"], ["a", "b"], ["b"]]
    await group.stop()


async def test_a_batch_is_bounded_in_writes_rows_and_bytes() -> None:
    store = Store()
    group = a_group(store, batch_writes_max=3, batch_rows_max=10, batch_bytes_max=100)
    tasks = await behind_the_gate(
        store,
        group,
        *(a_queued_write(s) for s in "abcd"),
        *(a_queued_write(s, rows=5) for s in "efg"),
        *(a_queued_write(s, size=60) for s in "hi"),
        a_queued_write("j", rows=99, size=9999),  # too much for any batch: alone in its own
        a_queued_write("k"),
    )
    assert store.gate is not None
    store.gate.set()
    await asyncio.gather(*tasks)
    assert store.batches[1:] == [["a", "b", "c"], ["d", "e"], ["f", "g"], ["h"], ["i"], ["j"], ["k"]]
    await group.stop()


@pytest.mark.parametrize("limits", [{"pending_writes_max": 2}, {"pending_bytes_max": 20}])
async def test_a_full_queue_refuses_and_takes_again_when_it_has_room(limits: dict[str, int]) -> None:
    store = Store()
    group = a_group(store, **limits)
    tasks = await behind_the_gate(store, group, a_queued_write("a", size=10), a_queued_write("b", size=10))
    with pytest.raises(Overloaded):
        await group.submit(a_queued_write("c", size=1))
    assert store.gate is not None
    store.gate.set()
    await asyncio.gather(*tasks)
    await group.submit(a_queued_write("c", size=10))
    await group.stop()


async def test_a_write_that_is_cancelled_in_the_queue_is_taken_back() -> None:
    store = Store()
    group = a_group(store, pending_bytes_max=10)
    tasks = await behind_the_gate(store, group, a_queued_write("a", size=5), a_queued_write("b", size=5))
    tasks[1].cancel()
    await asyncio.gather(tasks[1], return_exceptions=True)
    assert store.gate is not None
    store.gate.set()
    await asyncio.gather(tasks[0], tasks[2])
    assert store.batches == [["first"], ["b"]]
    await group.submit(a_queued_write("c", size=10))  # and its bytes count no more
    await group.stop()


async def test_a_bug_in_the_store_answers_its_batch_and_the_next_one_runs() -> None:
    fails = [True]

    async def commit(writes: Sequence[Write]) -> list[object]:
        if fails.pop():
            raise KeyError("bug")
        return [None] * len(writes)

    fails.insert(0, False)
    group = GroupCommit(commit, GroupLimits(pace_s=0.0))
    group.start()
    with pytest.raises(OutcomeUnknown) as caught:
        await group.submit(a_queued_write("a"))
    assert isinstance(caught.value.__cause__, KeyError)
    assert await group.submit(a_queued_write("a")) is None
    await group.stop()


@virtual
async def test_under_load_batches_keep_their_distance_and_a_small_one_does_not() -> None:
    loop = asyncio.get_running_loop()
    began_s: list[float] = []

    async def commit(writes: Sequence[Write]) -> list[object]:
        began_s.append(loop.time())
        return [None] * len(writes)

    group = GroupCommit(commit, GroupLimits(pace_s=0.05, pace_from_writes=4))
    group.start()
    for width in (4, 4, 1, 1):
        await asyncio.gather(*submit(group, *(a_queued_write(str(n)) for n in range(width))))
    gaps_s = [b - a for a, b in itertools.pairwise(began_s)]
    assert gaps_s == pytest.approx([0.05, 0.05, 0.0])
    await group.stop()


@virtual
async def test_batches_of_many_keep_a_longer_distance() -> None:
    loop = asyncio.get_running_loop()
    began_s: list[float] = []

    async def commit(writes: Sequence[Write]) -> list[object]:
        began_s.append(loop.time())
        return [None] * len(writes)

    limits = GroupLimits(pace_s=0.01, pace_from_writes=4, crowded_pace=5.0, crowded_from_writes=8)
    group = GroupCommit(commit, limits)
    group.start()
    for width in (8, 7, 1):
        await asyncio.gather(*submit(group, *(a_queued_write(str(n)) for n in range(width))))
    gaps_s = [b - a for a, b in itertools.pairwise(began_s)]
    assert gaps_s == pytest.approx([0.05, 0.01])
    await group.stop()


@virtual
async def test_after_a_batch_of_several_the_first_of_the_next_waits_for_its_neighbours() -> None:
    store = Store()
    group = a_group(store, gather_s=0.02)
    loop = asyncio.get_running_loop()
    await asyncio.gather(*submit(group, a_queued_write("a")))
    await asyncio.gather(*submit(group, a_queued_write("a"), a_queued_write("b")))
    began = loop.time()
    first = submit(group, a_queued_write("c"))
    for _ in range(3):  # it arrives by itself
        await asyncio.sleep(0)
    await asyncio.gather(*first, *submit(group, a_queued_write("d")))
    assert store.batches == [["a"], ["a", "b"], ["c", "d"]] and loop.time() - began == pytest.approx(0.02)
    await asyncio.gather(*submit(group, a_queued_write("e")))
    began = loop.time()
    await asyncio.gather(*submit(group, a_queued_write("f")))
    assert loop.time() == began, "one alone waits for nobody"
    await group.stop()


@virtual
async def test_what_somebody_waits_for_does_not_wait_for_neighbours() -> None:
    """Several rows begin or end an answer."""
    store, began = Store(), asyncio.get_running_loop().time()
    group = a_group(store, gather_s=60.0)
    await asyncio.gather(*submit(group, a_queued_write("a", rows=3), a_queued_write("b", rows=3)))
    await asyncio.gather(*submit(group, a_queued_write("c", rows=3)))
    assert store.batches == [["a", "b"], ["c"]] and asyncio.get_running_loop().time() == began
    await group.stop()


async def test_when_the_event_loop_is_torn_down_nobody_waits_for_ever() -> None:
    store = Store()
    group = a_group(store)
    tasks = await behind_the_gate(store, group, a_queued_write("a"))
    writer = next(task for task in asyncio.all_tasks() if task.get_name() == "journal-writer")
    writer.cancel()
    await group.stop()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(results[1], Unavailable)
    assert isinstance(results[0], OutcomeUnknown)


async def test_a_write_that_is_cancelled_during_its_commit_hurts_nobody() -> None:
    store = Store()
    group = a_group(store)
    tasks = await behind_the_gate(store, group, a_queued_write("a"))
    tasks[0].cancel()
    assert store.gate is not None
    store.gate.set()
    assert await tasks[1] is None
    assert tasks[0].cancelled()
    await group.stop()


async def test_stop_finishes_what_was_accepted_and_refuses_the_rest() -> None:
    store = Store()
    group = a_group(store)
    tasks = await behind_the_gate(store, group, a_queued_write("a"), a_queued_write("a"))
    stopping = asyncio.ensure_future(group.stop())
    await asyncio.sleep(0)
    with pytest.raises(Unavailable):
        await group.submit(a_queued_write("b"))
    assert store.gate is not None
    store.gate.set()
    await stopping
    assert all(task.done() and task.exception() is None for task in tasks)
    assert store.batches == [["first"], ["a"], ["a"]]
    await group.stop()


def test_a_plain_command_is_stored_as_it_ever_was() -> None:
    codec, answer = PlainCodec(), encode_ok(Ok(id=CommandId("c")))
    assert encode_command(codec, KEY, "r", b"d", answer) == (b"d", answer)
    assert decode_command(codec, KEY, "r", b"d", answer) == (b"d", answer)


async def test_work_that_lacks_a_key_is_done_when_it_is_loaded() -> None:
    loaded: list[str] = []

    class Late(PlainCodec):
        async def load(self, tenant: TenantId, key_id: str) -> None:
            loaded.append(key_id)

    def work() -> int:
        if len(loaded) < 2:
            raise KeyNotLoaded(KEY.tenant, f"k{len(loaded)}")
        return 7

    assert await with_keys(Late(), work) == 7 and loaded == ["k0", "k1"]
