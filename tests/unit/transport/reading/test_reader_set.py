"""Reading a log through a channel: what the client sees is the log, whatever happens in between (I3, I4)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from sessions.model import events as ev
from sessions.model.commands import Ok
from sessions.model.types import CallId, CommandId, Principal, ResponseId, SessionId
from testbed.engine_client import until
from tests.support.doors.transport import (
    TENANT,
    FakeSessions,
    Reading,
    Rig,
    Source,
    begun,
    created,
    delta,
    key_of,
    memory_sessions,
    point,
    retracted,
)
from transport.protocol.frames import JSON, MSGPACK, ResumePoint, event_frame
from transport.reading import feeds
from transport.reading.reader_set import RESUMES_AHEAD

S = SessionId("s")


async def a_log(sessions: FakeSessions, deltas: int = 10) -> list[ev.Record]:
    """created, three events that begin a response, then `deltas` of text: offsets 1 ... 4 + deltas."""
    records = await sessions.append("s", created(), *begun())
    more = await sessions.append("s", *(delta(f"w{n} ", 2 + n) for n in range(1, deltas + 1))) if deltas else ()
    return [*records, *more]


async def reading(source: Source, **more: Any) -> Rig:
    """A client that has read the log up to where it stands."""
    rig = Rig(source, **more)
    rig.channel.subscribe(point(0))
    await rig.run()
    return rig


class Gate:
    """A journal whose pages, as they stood when they were read, come while it is open."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.reads: list[str] = []

    async def __call__(self, call: str, key: Any, effect: Callable[[], Any]) -> Any:
        page = effect()
        if call == "read":
            self.reads.append(key.session)
            await self.open.wait()
        return page


def types(frames: list[dict[str, Any]]) -> list[str]:
    return [frame["type"] for frame in frames]


# -- how a resume is answered ----------------------------------------------------------------------------------------


async def test_too_far_back_gets_a_snapshot_and_the_start_is_never_too_far() -> None:
    sessions = await memory_sessions()
    await a_log(sessions, 20)
    rig = Rig(Source(sessions, replay_records_max=5))
    rig.channel.subscribe(point(3, "ep_s"))
    resumed, *_ = await rig.run()
    assert (resumed["type"], resumed["mode"], resumed["reason"]) == ("resumed", "snapshot", "too_far_back")
    rig.channel.subscribe(point(0))
    assert [f["mode"] for f in await rig.run() if f["type"] == "resumed"] == ["replay"]


async def test_unknown_foreign_and_deleted_sessions_are_gone() -> None:
    sessions = await memory_sessions()
    rig = Rig(Source(sessions))
    rig.channel.subscribe(point(0))
    (gone,) = await rig.run()
    assert (gone["mode"], gone["error"]["code"], gone["error"]["retryable"]) == ("gone", "session_not_found", False)
    assert not rig.channel.readers
    await a_log(sessions, 0)
    stranger = Rig(Source(sessions), principal=Principal(tenant=TENANT, key_id="k", user="eve"))
    for asked in (point(), point(0), point(2, "ep_s")):
        stranger.channel.subscribe(asked)
        assert [frame["error"]["code"] for frame in await stranger.run()] == ["session_not_found"]
    rig.channel.subscribe(point(0))
    await rig.run()
    await sessions.append("s", ev.SessionDeleted(), deleted=True)
    (last,) = await rig.run()
    assert last["event"]["type"] == "session.deleted"
    assert not rig.channel.readers, "nothing can follow: the reading has ended"
    for asked in (point(), point(0), point(5, "ep_s")):
        rig.channel.subscribe(asked)
        assert [frame["error"]["code"] for frame in await rig.run()] == ["session_deleted"]


async def test_what_becomes_durable_while_the_journal_is_read_is_neither_lost_nor_repeated() -> None:
    gate = Gate()
    sessions = await memory_sessions(gate)
    await a_log(sessions, 2)
    rig = Rig(Source(sessions))
    rig.channel.subscribe(point(0))
    await asyncio.sleep(0)
    await sessions.append("s", delta("x", 5), delta("y", 6))
    gate.open.set()
    client = Reading()
    for frame in await rig.run():
        client.take(frame)
    assert (client.offset, client.text, client.caught_up) == (8, "w1 w2 xy", 1)


async def test_a_reader_that_was_replaced_writes_nothing_more() -> None:
    gate = Gate()
    sessions = await memory_sessions(gate)
    await a_log(sessions, 1)
    rig = Rig(Source(sessions))
    rig.channel.subscribe(point(0))
    await asyncio.sleep(0)
    rig.channel.subscribe(point(4, "ep_s"))
    await asyncio.sleep(0)
    rig.channel.subscribe(ResumePoint(session=SessionId("unknown"), offset=0))
    rig.channel.unsubscribe(SessionId("unknown"))
    gate.open.set()
    assert [(f["type"], f.get("from"), f.get("offset")) for f in await rig.run()] == [
        ("resumed", 5, None),
        ("event", None, 5),
        ("caught_up", None, 5),
    ]
    assert len(rig.channel.readers) == 1


async def test_the_logs_of_a_reconnecting_client_are_read_beside_each_other_a_few_at_a_time() -> None:
    gate = Gate()
    sessions = await memory_sessions(gate)
    names = [f"s{number}" for number in range(2 * RESUMES_AHEAD)]
    for name in names:
        await sessions.append(name, created(), *begun())
    rig = Rig(Source(sessions))
    for name in names:
        rig.channel.subscribe(ResumePoint(session=SessionId(name), offset=0))
    for _ in range(20):
        await asyncio.sleep(0)
    assert gate.reads == names[:RESUMES_AHEAD]
    gate.open.set()
    resumed = [frame["session"] for frame in await rig.run() if frame["type"] == "resumed"]
    assert sorted(resumed) == names


async def test_a_reader_that_leaves_while_its_page_is_read_is_not_missed() -> None:
    gate = Gate()
    gate.open.set()
    sessions = await memory_sessions(gate)
    await a_log(sessions, 5)
    source = Source(sessions)
    rig = await reading(source, window_events=1)
    gate.open.clear()
    gate.reads.clear()
    rig.channel.ack(S, 1, 0.0)
    rig.flush()
    await until(lambda: bool(gate.reads))
    rig.channel.unsubscribe(S)
    gate.open.set()
    assert await rig.run() == []
    assert len(source.feeds) == 0


async def test_a_fault_of_ours_ends_one_reading_and_is_told() -> None:
    async def broken(call: str, key: Any, effect: Callable[[], Any]) -> Any:
        if call == "read" and key == key_of("s"):
            raise ValueError("a bug")
        return effect()

    sessions = await memory_sessions(broken)
    await a_log(sessions, 1)
    await sessions.append("t", created())
    source = Source(sessions)
    rig = Rig(source)
    rig.channel.subscribe(point(0))
    rig.channel.subscribe(ResumePoint(session=SessionId("t"), offset=0))
    with capture_logs() as logs:
        frames = await rig.run()
    assert (frames[0]["session"], frames[0]["mode"], frames[0]["error"]["code"]) == ("s", "gone", "internal_error")
    assert types(frames[1:]) == ["resumed", "event", "caught_up"]
    assert [entry["event"] for entry in logs] == ["resume_failed"]
    assert source.tasks.failures == 0


async def test_large_answers_are_made_one_at_a_time_and_none_while_the_socket_is_full() -> None:
    loads = 0

    async def counted(call: str, key: Any, effect: Callable[[], Any]) -> Any:
        nonlocal loads
        loads += call == "load"
        return effect()

    sessions = await memory_sessions(counted)
    for name in "abcd":
        await sessions.append(name, created())
    source = Source(sessions)
    rig = Rig(source)
    for name in "abcd":
        rig.channel.subscribe(ResumePoint(session=SessionId(name)))
    for _ in range(100):
        if loads:
            break
        await asyncio.sleep(0)
    rig.channel.stall()
    for _ in range(20):
        await asyncio.sleep(0)
    assert loads == 1
    assert len(rig.flush()) == 2
    rig.channel.flow()
    assert sorted(types(await rig.run())) == ["caught_up"] * 3 + ["resumed"] * 3
    rig.channel.stall()
    rig.channel.subscribe(ResumePoint(session=SessionId("a")))
    rig.channel.close()
    await source.settle()
    assert rig.written() == []


# -- many readers, one encoding ----------------------------------------------------------------------------------------


async def test_one_record_is_encoded_once_for_all_readers_of_an_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = await memory_sessions()
    await a_log(sessions, 1)
    source = Source(sessions)
    rigs = [await reading(source, encoding=encoding) for encoding in (JSON, JSON, MSGPACK, MSGPACK, JSON)]
    assert len(source.feeds) == 1
    assert len(sessions.sinks[key_of("s")]) == 1
    made = 0
    original = event_frame

    def counted(*args: Any) -> Any:
        nonlocal made
        made += 1
        return original(*args)

    monkeypatch.setattr(feeds, "event_frame", counted)
    await sessions.append("s", delta("z", 4))
    assert [[frame["event"]["delta"] for frame in await rig.run()] for rig in rigs] == [["z"]] * 5
    assert made == 2
    for rig in rigs:
        rig.channel.close()
    assert len(source.feeds) == 0
    assert sessions.sinks == {}
    assert source.feeds.bytes == 0


async def test_a_second_reader_behind_the_tail_asks_the_journal_nothing() -> None:
    calls: list[str] = []

    async def noted(call: str, key: Any, effect: Callable[[], Any]) -> Any:
        calls.append(call)
        return effect()

    sessions = await memory_sessions(noted)
    await a_log(sessions, 2)
    source = Source(sessions)
    await reading(source)
    second = Rig(source)
    await sessions.append("s", delta("a", 5))
    await sessions.append("s", delta("b", 6))
    calls.clear()
    second.channel.subscribe(point(6, "ep_s"))
    frames = await second.run()
    assert [frame.get("offset") for frame in frames] == [None, 7, 8, 8]
    assert calls == []


async def test_what_one_reader_finds_in_the_journal_its_neighbours_read_too() -> None:
    """The watch heard nothing of these records: they became durable while the gateway did not know whose they are."""
    sessions = await memory_sessions()
    await a_log(sessions, 2)
    source = Source(sessions)
    first = await reading(source)
    sinks, sessions.sinks = sessions.sinks, {}
    await sessions.append("s", delta("a", 5), delta("b", 6))
    sessions.sinks = sinks
    await reading(source)
    frames = await first.run()
    assert [frame["offset"] for frame in frames] == [8], "two deltas laid together"


# -- the window ----------------------------------------------------------------------------------------


async def test_unsubscribing_frees_what_was_never_acknowledged() -> None:
    sessions = await memory_sessions()
    await a_log(sessions)
    await sessions.append("t", created())
    rig = Rig(Source(sessions), window_events=3)
    rig.channel.subscribe(point(0))
    rig.channel.subscribe(ResumePoint(session=SessionId("t"), offset=0))
    await rig.run()
    assert rig.window.full
    rig.channel.unsubscribe(S)
    assert [frame["session"] for frame in await rig.run() if frame["type"] == "event"] == ["t"]
    rig.channel.unsubscribe(SessionId("never read"))


# -- answers among events ----------------------------------------------------------------------------------------


async def test_an_answer_that_overtook_its_event_fetches_it() -> None:
    sessions = await memory_sessions()
    await a_log(sessions, 0)
    rig = await reading(Source(sessions))
    sessions.deaf = True
    (record,) = await sessions.append("s", delta("missed", 3))
    rig.channel.answer(Ok(id=CommandId("c"), offset=record.offset), S, record.offset)
    assert [frame.get("offset") for frame in await rig.run()] == [5, 5]


async def test_answers_are_not_lost_with_their_reader() -> None:
    sessions = await memory_sessions()
    await a_log(sessions, 0)
    rig = await reading(Source(sessions), window_events=1)
    rig.channel.answer(Ok(id=CommandId("c"), offset=4), S, 4)
    rig.channel.unsubscribe(S)
    assert types(await rig.run()) == ["ok"]


# -- the log changes under a reader ---------------------------------------------------------------------------------


async def test_a_new_epoch_under_a_live_reader_is_a_reset() -> None:
    sessions = await memory_sessions()
    await a_log(sessions, 2)
    rig = Rig(Source(sessions))
    rig.channel.subscribe(point(0))
    client = Reading()
    for frame in await rig.run():
        client.take(frame)
    await sessions.new_epoch("s")
    await sessions.append("s", delta("after", 5))
    for frame in await rig.run():
        client.take(frame)
    assert client.modes == ["replay", "reset"]
    assert (client.epoch, client.offset, client.text) == ("ep_s'", 7, "w1 w2 after")


async def test_the_tail_never_holds_what_was_retracted() -> None:
    sessions = await memory_sessions()
    await a_log(sessions, 0)
    source = Source(sessions)
    live, late = Rig(source), Rig(source)
    seen = Reading()
    live.channel.subscribe(point(0))
    for frame in await live.run():
        seen.take(frame)
    await sessions.append("s", delta("secret", 3))
    for frame in await live.run():
        seen.take(frame)
    await sessions.append("s", delta(" more secret", 4), retracted(0, 18, "x"), delta("after", 5))
    late.channel.subscribe(point(0))
    frames = await late.run()
    assert "secret" not in str(frames)
    behind = await live.run()
    assert "secret" not in str(behind), "a reader that was live is shown no more of it than it had"
    for frame in behind:
        seen.take(frame)
    assert seen.text == "xafter"


async def test_a_retraction_that_the_watch_missed_is_obeyed_all_the_same() -> None:
    sessions = await memory_sessions()
    await a_log(sessions, 0)
    source = Source(sessions)
    rig, late = await reading(source), Rig(source)
    sessions.deaf = True
    await sessions.append("s", delta("secret", 3), retracted(0, 6))
    sessions.deaf = False
    await sessions.append("s", delta("after", 4))
    late.channel.subscribe(point(4, "ep_s"))
    for frames in (await rig.run(), await late.run()):
        assert "secret" not in str(frames)
        assert "after" in str(frames)


# -- rolled up for a slow link ---------------------------------------------------------------------------------------


async def test_deltas_wait_for_those_behind_them_the_first_never_and_other_events_take_them_along() -> None:
    sessions = await memory_sessions()
    await a_log(sessions, 0)
    rig = Rig(Source(sessions))
    rig.channel.rollup_s = 0.2
    rig.channel.subscribe(point(0))
    await rig.run()
    await sessions.append("s", delta("first ", 2))
    (first,) = await rig.run()
    assert first["event"]["delta"] == "first "
    rig.now = 0.05
    await sessions.append("s", delta("second ", 3))
    await sessions.append("s", delta("third ", 4))
    assert await rig.run() == []
    rig.now = 0.2
    (reader,) = rig.channel.readers.values()
    rig.channel._rolled(reader)  # as its timer does
    (both,) = await rig.run()
    assert (both["first_offset"], both["offset"], both["event"]["delta"]) == (6, 7, "second third ")
    await sessions.append("s", delta("fourth ", 5))
    assert await rig.run() == []
    await sessions.append("s", retracted(0, 5))
    assert len(await rig.run()) == 2, "what is no delta is not held up, nor what stands before it"
    rig.channel.close()


async def test_what_a_device_read_by_the_journal_counts_as_read() -> None:
    """An answer's end that fell into a change of owner, with more behind it than is delivered again: no push."""
    sessions, told = await memory_sessions(), list[tuple[str, int]]()
    await a_log(sessions, 1)
    source = Source(sessions)
    source.feeds.read_to = lambda key, offset: told.append((key.session, offset))
    rig = await reading(source)
    assert told == [("s", 5)], "it has caught up"
    await sessions.append("s", delta("live", 3))
    await rig.run()
    assert told == [("s", 5)], "words alone are no end"
    sessions.deaf = True
    await sessions.append("s", delta("missed", 4))
    sessions.deaf = False
    await sessions.append("s", delta("after the gap", 5))
    await rig.run()
    assert told == [("s", 5), ("s", 8)]
    asked = ev.ToolApprovalRequested(response_id=ResponseId("resp_1"), call_id=CallId("call_1"), name="f")
    await sessions.append("s", asked)
    await rig.run()
    assert told[-1] == ("s", 9), "who reads sees what waits for them"
