"""The connection core: what is allowed when, and what time asks for."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.model.commands import SessionWarm
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
from transport.protocol.flow_control import Unacked
from transport.protocol.frames import JSON, Ack, ErrorFrame, Goaway, Hello, Ping, Pong, Subscribe

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
