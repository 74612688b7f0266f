"""The connection core and its neighbours where the cases do not look: limits, odd frames, and the protocol's tables."""

from __future__ import annotations

import importlib
import inspect
import random
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from case_values import CASES, load_cases

from sessile_client import (
    Busy,
    Client,
    Conflict,
    FileStore,
    Forbidden,
    InvalidRequest,
    Limits,
    Link,
    NotFound,
    Position,
    RateLimited,
    Response,
    ServerError,
    Session,
    SessionGone,
    Unauthorized,
    Unavailable,
    View,
    WireError,
    sync,
)
from sessile_client._core import ClientCore
from sessile_client._ids import ulid, ulid_factory
from sessile_client._items import difference, moved
from sessile_client._policy import FATAL_CLOSES, RETRY_CLOSE_CODES
from sessile_client._track import Track
from sessile_client._transport import _deflating
from sessile_client._wire import decode, encode
from sessile_client.errors import server_error


def ready_core(**limits: Any) -> ClientCore:
    rng = random.Random(1)
    core = ClientCore(rng=rng, new_id=ulid_factory(lambda: 1, rng), now=0.0, limits=Limits(**limits))
    core.dialing()
    core.opened(0.0)
    core.received([{"type": "ready"}], 10, 0.0)
    core.take_outbox()
    return core


def snapshot(session: str, at: int) -> dict[str, Any]:
    return {"type": "resumed", "session": session, "mode": "snapshot", "epoch": "e", "at": at, "state": {}}


def test_ulids_sort_by_time_and_differ_within_it() -> None:
    rng = random.Random(1)
    early, late = ulid(1_000, rng), ulid(2_000, rng)
    assert early < late
    assert len(early) == 26
    assert len({ulid(5, rng) for _ in range(1000)}) == 1000
    assert ulid(0, random.Random(2))[:10] == "0000000000"
    with pytest.raises(ValueError, match="holds"):
        ulid(1 << 48, rng)


def test_a_detached_session_is_not_acknowledged() -> None:
    core = ready_core()
    core.attach(Track("s"))
    core.received([snapshot("s", 3)], 10, 1.0)
    core.detach("s")
    assert [frame["type"] for frame in core.take_outbox()] == ["subscribe", "unsubscribe"]
    core.tick(3.0)
    assert core.take_outbox() == []


def test_a_session_that_is_tracked_twice_has_one_position() -> None:
    core = ready_core()
    core.attach(Track("s"))
    core.received([snapshot("s", 3)], 10, 1.0)
    again = Track("s", epoch="e", offset=1)
    core.attach(again)
    replay = {"type": "resumed", "session": "s", "mode": "replay", "epoch": "e", "from": 2, "top": 2}
    event = {"type": "event", "session": "s", "epoch": "e", "offset": 2, "at": 1, "event": {"type": "x"}}
    core.received([replay, event], 10, 1.1)
    assert core.tracks["s"] is again
    assert again.offset == 2


@pytest.mark.parametrize(
    "frame",
    [
        {"type": "event", "session": "s", "epoch": "e", "offset": "4", "event": {}},
        {"type": "event", "session": "s", "epoch": "e", "offset": 0, "event": {}},
        {"type": "event", "session": "s", "epoch": "e", "offset": True, "event": {}},
        {"type": "event", "session": 7, "epoch": "e", "offset": 4, "event": {}},
        {"type": "event", "session": "s", "epoch": "e", "offset": 2**53, "event": {}},
        {"type": "resumed", "session": "s", "mode": "replay", "epoch": "e", "from": -1},
        {"type": "resumed", "session": "s", "mode": "snapshot", "epoch": None, "at": 3},
        {"type": "goaway", "after_ms": "soon"},
        {"type": "caught_up", "session": "s"},
    ],
)
def test_a_frame_that_breaks_the_protocol_stops_the_client(frame: dict[str, Any]) -> None:
    core = ready_core()
    core.attach(Track("s"))
    core.received([snapshot("s", 3), frame], 10, 1.0)
    assert core.link is Link.STOPPED
    assert core.take_close() == 1002


def test_a_command_id_that_is_waiting_is_not_taken_twice() -> None:
    core = ready_core()
    core.submit("session.warm", {"session": "s"}, 0.0, id="one")
    with pytest.raises(ValueError, match="one"):
        core.submit("session.warm", {"session": "s"}, 0.0, id="one")


def test_what_is_said_after_a_message_that_is_refused_for_a_moment_waits_for_it() -> None:
    core = ready_core()
    one, two = (core.submit("message.create", {"session": "s", "content": word, "queue": True}, 0.0) for word in "12")
    other = core.submit("message.create", {"session": "t", "content": "3", "queue": True}, 0.0)
    assert [frame["id"] for frame in core.take_outbox()] == [one, other]
    full = {"code": "overloaded", "message": "Too much at once.", "retryable": True, "retry_after_ms": 1000}
    core.received([{"type": "error", "id": one, "error": full}], 10, 0.0)
    core.tick(0.9)
    assert core.take_outbox() == []
    core.tick(1.0)
    assert [frame["id"] for frame in core.take_outbox()] == [one]
    core.received([{"type": "ok", "id": one}], 10, 1.1)
    assert [frame["id"] for frame in core.take_outbox()] == [two]


def test_another_network_ends_the_connection_at_once_and_dials() -> None:
    core = ready_core()
    core.redial(5.0)
    assert (core.link.value, core.take_close(), core.wakeup()) == ("offline", 1000, 5.0)
    core.stop()
    core.redial(6.0)
    assert core.link.value == "stopped"


@pytest.mark.parametrize(
    ("code", "type_", "wanted"),
    [
        ("item_not_found", "invalid_request_error", NotFound),
        ("session_deleted", "invalid_request_error", SessionGone),
        ("idempotency_conflict", "invalid_request_error", Conflict),
        ("tools_pending", "invalid_request_error", Busy),
        ("token_expired", "authentication_error", Unauthorized),
        ("forbidden", "permission_error", Forbidden),
        ("rate_limited", "rate_limit_error", RateLimited),
        ("draining", "server_error", Unavailable),
        ("from_the_future", "invalid_request_error", InvalidRequest),
        ("from_the_future", "rate_limit_error", RateLimited),
        ("from_the_future", "unheard_of", ServerError),
    ],
)
def test_codes_become_classes(code: str, type_: str, wanted: type[ServerError]) -> None:
    raw = {"type": type_, "code": code, "message": "m", "param": "p", "retryable": True, "retry_after_ms": 5}
    error = server_error(raw)
    assert type(error) is wanted
    assert error.to_dict() == raw


def test_an_error_that_is_no_object_is_still_an_error() -> None:
    assert server_error("boom").code == "unknown"
    assert server_error({"code": 5, "retryable": "yes", "retry_after_ms": -1}).to_dict() == {
        "type": "server_error",
        "code": "unknown",
        "message": "",
        "retryable": False,
    }


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
def test_frames_survive_the_wire(encoding: Any) -> None:
    frames: list[dict[str, Any]] = [
        {"type": "a", "text": "é👍🏽\x00", "n": 2**53 - 1, "x": [1.5, None, True]},
        {"type": "b"},
    ]
    assert decode(encode(frames, encoding), encoding) == frames
    assert decode(encode(frames[:1], encoding), encoding) == frames[:1]


@pytest.mark.parametrize(
    ("data", "encoding", "code"),
    [
        ("{", "json", 1007),
        ("[" * 100_000, "json", 1007),
        (b"\xc1", "msgpack", 1007),
        (b"\x81\xa4type\xc4\x01a", "msgpack", 1002),
        ("17", "json", 1002),
        ("{}", "json", 1002),
        ('[{"type":"a"},5]', "json", 1002),
        (b"{}", "json", 1003),
        ("{}", "msgpack", 1003),
    ],
)
def test_what_is_no_message_has_a_close_code(data: Any, encoding: Any, code: int) -> None:
    with pytest.raises(WireError) as wrong:
        decode(data, encoding)
    assert wrong.value.close_code == code


def test_a_view_takes_the_oddest_events_without_failing() -> None:
    view = View()
    for event in (
        {},
        {"type": 5},
        {"type": "item.created", "item": None},
        {"type": "response.output_text.delta", "delta": "early", "item_id": "i", "response_id": "r"},
        {"type": "response.output_text.delta", "delta": 7, "item_id": "i", "content_index": "x"},
        {"type": "response.content_part.added", "item_id": "i", "content_index": 10**12, "part": {"type": "t"}},
        {"type": "content.retracted", "item_id": "none", "start": 0, "end": 5},
        {"type": "content.retracted", "item_id": "i", "start": 2, "end": 10**9, "replacement": "!"},
        {"type": "response.completed", "response_id": "r", "response": "?"},
        {"type": "session.updated", "info": 3},
    ):
        view.apply(event)
    assert view.text("r").startswith("ea!")
    assert len(view.items["i"].content) <= 4097
    assert View.from_state(view.to_state()).text("r") == view.text("r")
    assert View.from_state({"items": 5, "open": [{}], "head": 7}).items == {}


@pytest.mark.parametrize(
    ("before", "after", "edit"),
    [("abcdef", "abXdef", (2, 3, 1)), ("abc", "", (0, 3, 0)), ("aaa", "aa", (2, 3, 0)), ("abc", "xabc", (0, 0, 1))],
)
def test_an_edit_is_the_smallestdifference(before: str, after: str, edit: tuple[int, int, int]) -> None:
    assert difference(before, after) == edit


def test_a_place_moves_with_the_text() -> None:
    assert [moved(place, [(2, 5, 1)]) for place in (0, 2, 3, 5, 7)] == [0, 2, 3, 3, 5]
    assert moved(9, [(0, 3, 8), (20, 25, 0)]) == 14


async def test_a_damaged_position_counts_as_none(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    assert await store.load("../../etc/passwd") is None
    await store.save("../s", Position("e", 3, {"items": []}))
    assert await store.load("../s") == Position("e", 3, {"items": []})
    (path,) = tmp_path.iterdir()
    whole = path.read_text()
    for damage in ("", whole[:-5], "[]", whole.replace('"../s"', '"other"'), whole.replace("3", "-3")):
        path.write_text(damage)
        assert await store.load("../s") is None
    await store.forget("../s")
    await store.forget("../s")
    assert list(tmp_path.iterdir()) == []


def test_an_item_that_is_deleted_is_out_of_the_tree() -> None:
    view = View()
    for item_id, parent_id in (("a", None), ("b", "a"), ("c", "b")):
        item = {"id": item_id, "parent_id": parent_id, "type": "message", "role": "user", "content": []}
        view.apply({"type": "item.created", "item": item})
    for item_id in ("b", "none", "c"):
        view.apply({"type": "content.retracted", "category": "item_deleted", "item_id": item_id, "start": 0, "end": 9})
    assert list(view.items) == ["a"] and view.head == "a" and view.children("a") == []


def test_a_retracted_image_is_removed() -> None:
    view = View()
    image = {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "sha256": "00", "width": 1, "height": 1}
    content = [{"type": "input_text", "text": "Look"}, dict(image), image]
    item = {"id": "a", "parent_id": None, "type": "message", "role": "user", "content": content}
    view.apply({"type": "item.created", "item": item})
    view.apply({"type": "content.retracted", "item_id": "a", "content_index": 1, "start": 0, "end": 1})
    assert view.items["a"].content == [content[0], {"type": "input_image"}, image]


def test_on_a_slow_link_hello_asks_for_a_roll_up_and_the_address_for_compression() -> None:
    rng = random.Random(1)
    core = ClientCore(rng=rng, new_id=ulid_factory(lambda: 1, rng), rollup_ms=200)
    core.dialing()
    core.opened(0.0)
    assert core.take_outbox() == [{"type": "hello", "rollup_ms": 200}]
    assert _deflating("ws://h/v1/ws") == "ws://h/v1/ws?compress=deflate"
    assert _deflating("ws://h/v1/ws?ticket=t") == "ws://h/v1/ws?ticket=t&compress=deflate"


PACKAGE = Path(__file__).parents[1]
CHECKOUT = PACKAGE.parents[1]
PROTOCOL = (CASES.parents[1] / "protocol.md").read_text(encoding="utf-8")


def _rows(heading: str) -> list[list[str]]:
    """The first table under a heading of the protocol, without its head."""
    section = PROTOCOL.split(f"{heading}\n", 1)[1]
    lines = [line for line in section.split("\n### ")[0].split("\n## ")[0].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def _codes() -> dict[str, list[str]]:
    return {code: row[1:] for row in _rows("### 7.2 Codes") for code in re.findall(r"`(\w+)`", row[0])}


def test_close_codes_are_those_of_the_client() -> None:
    stop: set[int] = set()
    back: set[int] = set()
    for codes, _, does in _rows("### 6.1 Close codes"):
        (stop if does == "stop" else back).update(int(code) for code in codes.split(",") if does)
    assert stop == FATAL_CLOSES.keys()
    assert back == RETRY_CLOSE_CODES


def test_codes_are_those_of_the_server() -> None:
    if not (CHECKOUT / "transport" / "errors.py").exists():
        pytest.skip("the server is not in this checkout")
    sys.path.insert(0, str(CHECKOUT))
    try:
        codes = importlib.import_module("transport.errors").CODES
    finally:
        sys.path.remove(str(CHECKOUT))
    documented = {code: (int(row[0]), row[1], int(row[2]) if row[2] else None) for code, row in _codes().items()}
    # HTTP's own and settings' codes never travel on a session connection
    served = {code: tuple(row) for code, row in codes.items() if code != "invalid_setting"}
    assert documented == served


def test_the_codes_that_are_retryable_end_no_connection_for_good() -> None:
    """The sentence above the table says which codes are retryable."""
    once = {"quota_exceeded", "file_quota_exceeded"}
    for code, (status, grpc, close, _) in _codes().items():
        is_retryable = status == "503" or (status == "429" and code not in once) or (status, grpc) == ("409", "ABORTED")
        if close and (is_retryable or code in ("slow_reader", "heartbeat_lost")):
            assert int(close) in RETRY_CLOSE_CODES, code


def test_every_case_says_what_it_is_about() -> None:
    cases = load_cases("client") + load_cases("server")
    assert sum("client" in case["runs"] for case in cases) >= 25
    assert sum("server" in case["runs"] for case in cases) >= 20
    for case in cases:
        assert (CASES / f"{case['name']}.json").exists()
        assert f"### {case['spec']} " in PROTOCOL, case["name"]
        assert case["title"].strip() and case["steps"]


def test_the_clients_limits_are_those_of_the_protocol() -> None:
    limits = Limits()
    assert limits.in_flight_max <= 32
    assert (limits.backoff_first_s, limits.backoff_max_s, limits.ack_after_s) == (0.25, 20.0, 1.0)
    assert limits.heartbeat_ms * 1.4 == 35_000
    assert limits.command_bytes_max <= 1024 * 1024


PAIRS = [(Client, sync.Client), (Session, sync.Session), (Response, sync.Response)]


def public(cls: type) -> dict[str, Any]:
    return {name: each for name, each in vars(cls).items() if not name.startswith("_")}


@pytest.mark.parametrize(("with_async", "without"), PAIRS)
def test_nothing_is_missing(with_async: type, without: type) -> None:
    assert set(public(with_async)) - set(public(without)) == set()


@pytest.mark.parametrize(("with_async", "without"), PAIRS)
def test_parameters_are_the_same(with_async: type, without: type) -> None:
    for name, method in public(with_async).items():
        if inspect.isfunction(method):
            wanted = set(inspect.signature(method).parameters)
            offered = set(inspect.signature(public(without)[name]).parameters)
            assert wanted <= offered, name


@pytest.mark.parametrize(
    "method",
    [
        "appeal",
        "cancel",
        "compact",
        "delete",
        "edit",
        "pin",
        "regenerate",
        "send",
        "steer",
        "tool_output",
        "undo_compaction",
        "update",
    ],
)
def test_every_command_on_a_session_takes_an_idempotency_key(method: str) -> None:
    for cls in (Session, sync.Session):
        assert "command_id" in inspect.signature(getattr(cls, method)).parameters
    for client in (Client, sync.Client):
        assert {"command_id"} <= set(inspect.signature(client.create_session).parameters)
        assert {"command_id"} <= set(inspect.signature(client.command).parameters)
