"""The session protocol without a socket: frames, a connection's rules, merged events, the window."""

from __future__ import annotations

import json
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.model import events as ev
from sessions.model.commands import SessionCreate, SessionWarm
from sessions.model.types import ItemId, UnixMs
from tests.support.doors.transport import ITEM, RESPONSE, delta, message_created
from transport import errors
from transport.protocol import decoding
from transport.protocol.connection import (
    Action,
    Close,
    Connection,
    ConnectionLimits,
    ConnectionPhase,
    ConnectionTiming,
    Drop,
    Send,
)
from transport.protocol.decoding import DEPTH_MAX, FRAMES_MAX, VALUES_MAX, BadFrame, RefusedFrame, decode, unacceptable
from transport.protocol.delta_merge import MERGED_CHARS_MAX, merged
from transport.protocol.flow_control import Unacked, Window
from transport.protocol.frames import ENCODINGS, JSON, MSGPACK, Ack, ErrorFrame, Goaway, Hello, Ping, Pong, Subscribe

HELLO = {"type": "hello"}


def send(connection: Connection, *frames: dict[str, Any], at: float = 0.0) -> list[Action]:
    return connection.received(json.dumps(list(frames)).encode(), False, at)


def ready(limits: ConnectionLimits | None = None) -> Connection:
    connection = Connection(JSON, limits or ConnectionLimits(), 0.0)
    (hello,) = send(connection, HELLO)
    assert isinstance(hello, Hello)
    return connection


def said(actions: list[Action]) -> list[str]:
    """Actions in short: error codes, close codes, types."""
    out = []
    for action in actions:
        match action:
            case Send(ErrorFrame() as frame):
                out.append(frame.error["code"])
            case Send(message):
                out.append(str(type(message).__struct_config__.tag))
            case Close(code):
                out.append(str(code))
            case _:
                out.append(type(action).__name__)
    return out


def warm(number: int) -> dict[str, Any]:
    return {"type": "session.warm", "id": f"c{number}", "session": "s"}


def test_a_hello_that_is_wrong_ends_the_connection() -> None:
    connection = Connection(JSON, ConnectionLimits(), 0.0)
    assert said(send(connection, {"type": "hello", "resume": 3})) == ["invalid_request", "4400"]


# -- time ----------------------------------------------------------------------------------------------------------


def test_a_window_left_full_for_30_s_ends_with_4408_and_progress_restarts_the_clock() -> None:
    connection = ready(ConnectionLimits(window_events=2))
    reader = Unacked()
    send(connection, {"type": "pong"}, at=40.0)
    connection.window.sent(reader, 1, 10, 40.0)
    connection.window.sent(reader, 2, 10, 41.0)
    connection.window.sent(reader, 3, 10, 42.0)
    connection.window.acked(reader, 1, 60.0)
    send(connection, {"type": "pong"}, at=60.0)
    connection.wrote(60.0)
    send(connection, {"type": "pong"}, at=80.0)
    connection.wrote(80.0)
    assert connection.tick(89.9) == []
    assert said(connection.tick(90.0)) == ["slow_reader", "4408"]


def test_goaway_is_said_once_and_then_done() -> None:
    connection = ready()
    (announced,) = connection.goaway("restart", 2000, 10.0)
    assert announced == Send(Goaway(reason="restart", after_ms=2000))
    assert connection.goaway("restart", 1, 10.0) == []
    assert said(send(connection, warm(1), at=11.0)) == ["SessionWarm"], "until then everything works"
    assert said(connection.tick(12.0)) == ["1012"]
    silent = Connection(JSON, ConnectionLimits(), 0.0)
    silent.goaway("restart", 500, 0.0)
    assert said(silent.tick(0.5)) == ["1012"]


FRAMES = st.one_of(
    st.just(HELLO),
    st.just({"type": "ping"}),
    st.just({"type": "pong"}),
    st.just({"type": "nonsense", "id": "x"}),
    st.builds(warm, st.integers(0, 3)),
    st.just({"type": "subscribe", "id": "s", "session": "s"}),
    st.just({"type": "ack", "session": "s", "offset": 2}),
    st.just({"type": "subscribe", "id": "s"}),
    st.integers(0, 3),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("frames"), st.lists(FRAMES, max_size=4)),
        st.tuples(st.just("bytes"), st.binary(max_size=20)),
        st.tuples(st.just("wait"), st.floats(0, 40)),
        st.tuples(st.sampled_from(["goaway", "stalled", "flowing", "wrote", "answer"]), st.none()),
    ),
    max_size=30,
)


@given(STEPS)
def test_whatever_happens_the_rules_hold(steps: list[tuple[str, Any]]) -> None:
    """One close at most and nothing after it; requests only between hello and close; a deadline that can be met."""
    now = 1000.0
    connection = Connection(JSON, ConnectionLimits(commands_max=3, timing=ConnectionTiming(close_s=5.0)), now)
    greeted = closed = False
    open_commands = 0
    for kind, value in steps:
        actions: list[Action] = []
        match kind:
            case "frames":
                actions = connection.received(json.dumps(value).encode(), False, now)
            case "bytes":
                actions = connection.received(value, False, now)
            case "wait":
                now += value
                actions = connection.tick(now)
            case "goaway":
                actions = connection.goaway("restart", 1000, now)
            case "stalled":
                connection.stalled(now)
            case "flowing":
                connection.flowing()
            case "wrote":
                connection.wrote(now)
            case "answer" if open_commands:
                connection.answered()
                open_commands -= 1
        for action in actions:
            assert not closed or isinstance(action, Drop), f"{action} after the close"
            match action:
                case Close(code, reason):
                    closed = True
                    assert code in (1003, 1007, 1012, 4400, 4408, 4412)
                    assert reason
                case Hello():
                    assert not greeted
                    greeted = True
                case Subscribe() | SessionWarm():
                    assert greeted
                    open_commands += 1
                    assert open_commands <= 3
                case Ack():
                    assert greeted
                case Send(Ping() | Pong() | ErrorFrame() | Goaway()) | Drop():
                    continue
                case _:
                    pytest.fail(f"unexpected {action}")
        assert (connection.phase is ConnectionPhase.CLOSING) == closed
        assert connection.deadline() < now + 60
        if not closed:
            assert connection.tick(min(now, connection.deadline() - 0.001)) == []


def packed(value: Any) -> bytes:
    """By another implementation than ours, so that the two check each other."""
    return bytes(msgpack.packb(value, use_bin_type=True))


def written(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


@pytest.mark.parametrize(
    ("frame", "param", "words"),
    [
        ({"type": "subscribe", "id": "c"}, "session", "missing"),
        ({"type": "subscribe", "id": "c", "session": "no spaces"}, "session", "1 to 64 of A-Z"),
        ({"type": "session.create", "id": "c", "tools": [{"name": "f", "type": "x"}]}, "tools[0].type", "x"),
        ({"type": "subscribe", "id": "c", "session": "s", "offset": -1}, "offset", ">= 0"),
        ({"type": "session.create", "id": "c", "tools": [{"name": "f"}, {"name": 3}]}, "tools[1].name", "`str`"),
        ({"type": "session.create", "id": "c", "tools": [{}]}, "tools[0].name", "missing"),
        ({"type": "session.create", "id": "c", "metadata": {"k": 2**53}}, "metadata.k", "2**53"),
        ({"type": "session.create", "id": "c", "metadata": {"k": [1, -(2**60)]}}, "metadata.k[1]", "2**53"),
        ({"type": "message.create", "id": "c", "session": "s", "content": []}, "content", "length"),
        ({"type": "message.create", "id": "c", "session": "s", "content": "x", "top_p": 7}, "top_p", "<= 1"),
        ({"type": "session.list", "id": "c", "limit": 101}, "limit", "<= 100"),
    ],
)
def test_a_wrong_field_is_named_and_the_command_is_answered_under_its_id(
    frame: dict[str, Any], param: str, words: str
) -> None:
    for encoding, write in ((JSON, written), (MSGPACK, packed)):
        (refusal,) = decode(write(frame), encoding)
        assert isinstance(refusal, RefusedFrame)
        assert (refusal.id, refusal.error.code, refusal.error.param) == ("c", "invalid_request", param)
        assert words in refusal.error.public_message


def test_an_id_that_cannot_be_read_is_left_out() -> None:
    for given_id in (3, None, "x" * 65, ["c"]):
        (refusal,) = decode(written({"type": "subscribe", "id": given_id, "session": "s"}), JSON)
        assert isinstance(refusal, RefusedFrame) and refusal.id is None and refusal.error.param == "id"


@pytest.mark.parametrize("name", ["a\n", "a\0", "", "é", "a b"])
def test_names_hold_nothing_that_a_store_or_a_log_line_could_stumble_over(name: str) -> None:
    (by_id,) = decode(written({"type": "session.get", "id": name, "session": "s"}), JSON)
    assert isinstance(by_id, RefusedFrame) and by_id.error.param == "id"
    (by_session,) = decode(written({"type": "session.get", "id": "c", "session": name}), JSON)
    assert isinstance(by_session, RefusedFrame) and by_session.error.param == "session"


@pytest.mark.parametrize(
    ("data", "close"),
    [
        (b"", 4400),
        (b"{", 4400),
        (b"nul", 4400),
        (b"3", 4400),
        (b'"hello"', 4400),
        (b"[3]", 4400),
        (b"[[]]", 4400),
        (b"{}", 4400),
        (b'{"type":3}', 4400),
        (b'{"type":"ping"}{"type":"ping"}', 4400),
        (b'{"type":"ping","x":1e999}', 4400),
        (b'{"type":"ping","x":"\\ud800"}', 4400),
        (b'{"type":"\xff"}', errors.INVALID_DATA),
        (b'{"type":"ping"}\xff', errors.INVALID_DATA),
        (b"[" * 100_000, 4400),
        (b'{"a":' * 100_000, 4400),
    ],
)
def test_what_is_no_json_ends_the_connection(data: bytes, close: int) -> None:
    with pytest.raises(BadFrame) as caught:
        decode(data, JSON)
    assert caught.value.close == close


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x80\x80",
        b"\x81\xa1a\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\x91" * 100_000 + b"\x90",
        packed({"type": "ping", "x": "y"}).replace(b"y", b"\xff"),
        packed({"type": "ping", 3: "x"}),
        b"\x82\xa4type\xa4ping\x90\x01",
        packed(b"bytes"),
    ],
)
def test_what_is_no_messagepack_ends_the_connection(data: bytes) -> None:
    with pytest.raises(BadFrame):
        decode(data, MSGPACK)


@pytest.mark.parametrize(
    "value", [b"bytes", float("nan"), float("inf"), msgpack.Timestamp(1), msgpack.ExtType(4, b"x")]
)
def test_values_that_json_cannot_say_are_refused(value: Any) -> None:
    (refusal,) = decode(packed({"type": "session.create", "id": "c", "metadata": {"k": value}}), MSGPACK)
    assert isinstance(refusal, RefusedFrame)
    assert (refusal.id, refusal.error.param) == ("c", "metadata.k")


def nested(depth: int) -> dict[str, Any]:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return {"type": "session.create", "id": "c", "metadata": {"k": value}}


def test_nesting_has_a_limit() -> None:
    (command,) = decode(written(nested(DEPTH_MAX - 2)), JSON)
    assert isinstance(command, SessionCreate)
    with pytest.raises(BadFrame):
        decode(written(nested(DEPTH_MAX - 1)), JSON)


def test_the_number_of_frames_and_of_values_has_a_limit() -> None:
    assert len(decode(written([{"type": "ping"}] * FRAMES_MAX), JSON)) == FRAMES_MAX
    with pytest.raises(BadFrame):
        decode(written([{"type": "ping"}] * (FRAMES_MAX + 1)), JSON)
    with pytest.raises(BadFrame):
        decode(written({"type": "ping", "x": [0] * VALUES_MAX}), JSON)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
FIELDS = ["type", "id", "session", "offset", "epoch", "content", "resume", "auth", "limit", "tools", "metadata", "stop"]
TYPES = ["hello", "subscribe", "ack", "ping", "session.create", "message.create", "session.list", "tool.output", "zzz"]
DECODING_FRAMES = st.dictionaries(st.sampled_from(FIELDS), JSON_VALUES | st.sampled_from(TYPES), max_size=6)


@given(
    st.one_of(st.binary(max_size=200), DECODING_FRAMES.map(packed), st.lists(DECODING_FRAMES, max_size=3).map(packed))
)
def test_any_bytes_are_frames_refusals_or_a_bad_frame(data: bytes) -> None:
    for encoding in ENCODINGS.values():
        bad, frames = None, []
        try:
            frames = decode(data, encoding)
        except BadFrame as exc:
            bad = exc
        assert bad is None or (bad.reason and bad.close in (errors.BAD_FRAME, errors.INVALID_DATA))
        for refusal in frames:
            if isinstance(refusal, RefusedFrame):
                assert refusal.error.code in ("invalid_request", "unknown_type")
                assert refusal.error.public_message


@given(st.lists(DECODING_FRAMES, max_size=3))
def test_both_encodings_read_the_same(frames: list[dict[str, Any]]) -> None:
    def outcome(encoding: Any, data: bytes) -> Any:
        try:
            return [
                (frame.id, frame.error.param) if isinstance(frame, RefusedFrame) else frame
                for frame in decode(data, encoding)
            ]
        except BadFrame:
            return "bad"

    try:
        text = json.dumps(frames, allow_nan=False).encode()
    except ValueError:
        return  # JSON has no infinity
    assert outcome(JSON, text) == outcome(MSGPACK, packed(frames))


@pytest.mark.parametrize("kind", ["turn.create", "response.erase"])
def test_commands_of_our_own_doors_are_not_taken_from_clients(kind: str) -> None:
    frame = {"type": kind, "id": "c1", "session": "s1", "response_id": "resp_1"}
    (refusal,) = decode(JSON.encode(frame), JSON)
    assert isinstance(refusal, RefusedFrame) and refusal.error.code == "unknown_type"


class CountedName(str):
    """A key that counts how often it is copied into another text."""

    written = 0

    def __str__(self) -> str:
        CountedName.written += 1
        return str.__str__(self)

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)


def test_where_a_value_stands_is_written_out_for_errors_only() -> None:
    CountedName.written = 0
    name = CountedName("k" * 1000)
    inside: list[Any] = [[], {}, [{name: [[]]}]] * 20
    assert unacceptable({name: inside}) is None
    assert CountedName.written == 0
    inside.append({name: [1, 2**60]})
    assert unacceptable({name: inside}) == (f"{'k' * 64}...[60].{'k' * 64}...[1]", "integers stay below 2**53.")


@pytest.mark.parametrize(("encoding", "write"), [(JSON, json.dumps), (MSGPACK, msgpack.packb)])
def test_a_long_name_is_clipped_in_its_error(encoding: Any, write: Any) -> None:
    data = write({"type": "hello", "id": "1", "k" * 500_000: {"a": 2**60}})
    [frame] = decode(data if isinstance(data, bytes) else data.encode(), encoding)
    assert isinstance(frame, RefusedFrame)
    assert frame.error.param == f"{'k' * 64}....a"


@pytest.mark.parametrize(("value", "what"), [(2**53, "integers"), (-(2**53), "integers"), (float("inf"), "a number")])
@pytest.mark.parametrize("others", [(), ("x", None, True), (1, 2.0), ([1], {"a": 1})])
def test_one_among_many_values_is_found(value: object, what: str, others: tuple[object, ...]) -> None:
    values = [1] * 100 + [*others, value]
    found = unacceptable({"a": values})
    assert found is not None and found[0] == f"a[{len(values) - 1}]" and found[1].startswith(what)
    named = unacceptable({str(number): value for number, value in enumerate(values)})
    assert named is not None and named[0] == str(len(values) - 1)
    assert unacceptable({"a": values[:-1]}) is None


_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.text(max_size=3)
    | st.sampled_from([0, 2**53 - 1, 2**53, -(2**53), 0.5])
    | st.floats(),
    lambda inside: st.lists(inside, max_size=4) | st.dictionaries(st.text(max_size=3), inside, max_size=4),
)


@given(st.dictionaries(st.text(max_size=3) | st.integers(), _VALUES, max_size=4), st.integers(1, 12))
def test_the_look_at_all_together_agrees_with_the_look_at_one_after_the_other(
    frame: dict[object, object], values_max: int
) -> None:
    try:
        is_acceptable = decoding._first_unacceptable(frame, values_max) is None
    except BadFrame:
        is_acceptable = False
    assert decoding._is_acceptable(frame, values_max) == is_acceptable


def arguments(text: str, number: int, item: str = ITEM) -> ev.ArgumentsDelta:
    return ev.ArgumentsDelta(
        response_id=RESPONSE, sequence_number=number, item_id=ItemId(item), output_index=0, delta=text
    )


def refusal(text: str, number: int, content_index: int = 0) -> ev.RefusalDelta:
    return ev.RefusalDelta(
        response_id=RESPONSE,
        sequence_number=number,
        item_id=ITEM,
        output_index=0,
        content_index=content_index,
        delta=text,
    )


def records(*events: ev.AnyEvent, start: int = 1) -> list[ev.Record]:
    return [ev.Record(offset, UnixMs(100 + offset), event) for offset, event in enumerate(events, start)]


def test_a_merged_event_is_bounded_and_one_long_delta_passes() -> None:
    spans = list(merged(records(*(delta("x" * 3000, n) for n in range(1, 6)), delta("y" * (MERGED_CHARS_MAX + 1), 6))))
    lengths = [len(span.record.event.delta) for span in spans if isinstance(span.record.event, ev.OutputTextDelta)]
    assert lengths == [6000, 6000, 3000, MERGED_CHARS_MAX + 1]


EVENTS = st.lists(
    st.one_of(
        st.builds(delta, st.text(max_size=6), st.just(1), st.sampled_from(["a", "b"])),
        st.builds(arguments, st.text(max_size=6), st.just(1)),
        st.builds(refusal, st.text(max_size=6), st.just(1), st.integers(0, 1)),
        st.just(message_created("", "i")),
        st.just(ev.SessionMigrated(replica="r", cause="handoff")),
    ),
    max_size=40,
)


@given(EVENTS, st.integers(1, 1000))
def test_every_offset_is_covered_once_and_every_text_is_the_same(events: list[ev.AnyEvent], start: int) -> None:
    spans = list(merged(records(*events, start=start)))
    covered = [n for span in spans for n in range(span.first_offset or span.record.offset, span.record.offset + 1)]
    assert covered == list(range(start, start + len(events)))
    assert texts([span.record.event for span in spans]) == texts(events)


def texts(events: list[ev.AnyEvent]) -> list[str]:
    """The stream as a reader accumulates it: runs of one text laid together."""
    out: list[tuple[object, str]] = []
    for event in events:
        if isinstance(event, ev.OutputTextDelta | ev.RefusalDelta | ev.ArgumentsDelta):
            place = (type(event), event.item_id, getattr(event, "content_index", 0))
            if out and out[-1][0] == place:
                out[-1] = (place, out[-1][1] + event.delta)
            else:
                out.append((place, event.delta))
        else:
            out.append((event, ""))
    return [f"{place}{text}" for place, text in out]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["send", "ack", "forget"]), st.integers(0, 2), st.integers(1, 50), st.integers(0, 99)
        ),
        max_size=60,
    )
)
def test_what_is_out_is_what_was_sent_and_not_acknowledged(steps: list[tuple[str, int, int, int]]) -> None:
    window = Window(5, 200)
    readers = [Unacked() for _ in range(3)]
    out: list[list[tuple[int, int]]] = [[], [], []]
    tops = [0, 0, 0]
    for now, (kind, which, amount, offset) in enumerate(steps):
        if kind == "send":
            tops[which] += 1 + amount % 3
            window.sent(readers[which], tops[which], amount, now)
            out[which].append((tops[which], amount))
        elif kind == "ack":
            freed = any(at <= offset for at, _ in out[which])
            assert window.acked(readers[which], offset, now) == freed
            out[which] = [(at, size) for at, size in out[which] if at > offset]
        else:
            window.forget(readers[which], now)
            out[which] = []
        assert window.events == sum(map(len, out))
        assert window.bytes == sum(size for one in out for _, size in one)
        assert (window.full_since is not None) == window.full
        assert [reader.sent is None for reader in readers] == [not one for one in out]
