"""The position core against a model: whatever is cut, repeated, merged or lost, the view is the log."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from sessile_client import Limits, Link
from sessile_client._core import ClientCore
from sessile_client._ids import ulid_factory
from sessile_client._notices import Answered
from sessile_client._track import Event, Phase, Snapshot, Track
from sessile_client._view import View

Frame = dict[str, Any]


def events_of(script: list[tuple[str, int]]) -> list[Frame]:
    """A log from a script of moves: messages, answers with deltas, retractions, tool calls, titles."""
    events: list[Frame] = [{"type": "session.created", "info": {"model": "m", "title": None, "metadata": {}}}]
    head: str | None = None
    for number, (move, size) in enumerate(script):
        item_id, response_id = f"i{number}", f"r{number}"
        ids = {"response_id": response_id, "item_id": item_id, "output_index": 0, "content_index": 0}
        if move == "title":
            events.append({"type": "session.updated", "info": {"model": "m", "title": "t" * size, "metadata": {}}})
            continue
        if move == "ask":
            content = [{"type": "input_text", "text": "q" * size}]
            item = _item(item_id, head, "message", "user", content=content)
            events.append({"type": "item.created", "item": item})
            head = item_id
            continue
        body: Frame = {"id": response_id, "status": "in_progress", "parent_id": head, "output": []}
        events.append({"type": "response.created", "response_id": response_id, "sequence_number": 0, "response": body})
        kind = "function_call" if move == "call" else "message"
        fields: Frame = {"arguments": "", "call_id": f"c{number}", "name": "f"} if move == "call" else {"content": []}
        item = _item(item_id, head, kind, "assistant", **fields)
        events.append({"type": "response.output_item.added", **ids, "item": item})
        delta = "response.function_call_arguments.delta" if move == "call" else "response.output_text.delta"
        text = "".join(chr(0x1F600 + (number * 7 + i) % 60) + str(i) for i in range(size))
        pieces = [text[i : i + 3] for i in range(0, len(text), 3)]
        events += [{"type": delta, **ids, "delta": piece} for piece in pieces]
        if move == "retract" and len(text) > 3:
            span: Frame = {"start": 1, "end": len(text) // 2, "replacement": "…", "category": "x"}
            events.append({"type": "content.retracted", **ids, **span})
            events.append({"type": delta, **ids, "delta": "tail"})
        if move != "open":
            status = "incomplete" if move == "stop" else "completed"
            ended = {**body, "status": status, "usage": {"output_tokens": size}}
            if status == "incomplete":
                ended["incomplete_details"] = {"reason": "cancelled"}
            events.append({"type": f"response.{status}", "response_id": response_id, "response": ended})
        head = item_id
    return events


def _item(item_id: str, parent: str | None, type_: str, role: str, **fields: Any) -> Frame:
    status = "completed" if role == "user" else "in_progress"
    return {
        "id": item_id,
        "parent_id": parent,
        "type": type_,
        "role": role,
        "status": status,
        "created_at": 1,
        **fields,
    }


def folded(events: list[Frame]) -> View:
    view = View()
    for event in events:
        view.apply(event)
    return view


def shown(view: View) -> Frame:
    """What a reader sees of a view."""
    return {
        "items": {i: (item.parent_id, item.text, item.arguments, item.status) for i, item in view.items.items()},
        "texts": {r: view.text(r) for r in view.responses},
        "open": sorted(view.open),
        "ended": {r.id: (r.status, r.incomplete_reason, r.usage) for r in view.responses.values() if r.ended},
        "head": view.head,
        "title": view.title,
        "branch": [item.id for item in view.branch()],
        "calls": sorted(item.id for item in view.pending_calls),
    }


moves = st.sampled_from(["ask", "answer", "retract", "call", "stop", "title"])
scripts = st.lists(st.tuples(moves, st.integers(1, 12)), min_size=1, max_size=8)


class Server:
    """One log; answers requests as the protocol says and mistreats the line as it likes."""

    def __init__(self, events: list[Frame], rng: random.Random) -> None:
        self._events = events
        self._rng = rng
        self.epoch = "ep_1"
        self.top = rng.randint(1, len(events))

    def grow(self) -> None:
        self.top = min(len(self._events), self.top + self._rng.randint(1, 6))

    def answer(self, epoch: str | None, offset: int | None) -> list[Frame]:
        """``resumed``, events, ``caught_up``: by replay with merged deltas, or by snapshot."""
        common = {"type": "resumed", "session": "s", "epoch": self.epoch}
        if offset is None or self._rng.random() < 0.15:
            offset = self._rng.randint(offset or 0, self.top)
            frames = [{**common, "mode": "snapshot", "at": offset, "state": folded(self._events[:offset]).to_state()}]
        else:
            frames = [{**common, "mode": "replay", "from": offset + 1, "top": self.top}]
        frames += self.events(offset, self.top)
        return [*frames, {"type": "caught_up", "session": "s", "offset": self.top}]

    def events(self, after: int, upto: int) -> list[Frame]:
        frames: list[Frame] = []
        while after < upto:
            event = self._events[after]
            last = after + 1
            if event["type"].endswith(".delta") and self._rng.random() < 0.6:
                while last < upto and self._events[last]["type"] == event["type"] and self._rng.random() < 0.8:
                    if self._events[last]["item_id"] != event["item_id"]:
                        break
                    event = {**event, "delta": event["delta"] + self._events[last]["delta"]}
                    last += 1
            frame = {"type": "event", "session": "s", "epoch": self.epoch, "offset": last, "at": 1, "event": event}
            if last > after + 1:
                frame["first_offset"] = after + 1
            frames.append(frame)
            after = last
        return frames


@given(scripts, st.integers(0, 2**32))
@settings(max_examples=25 if settings().derandomize else 100, deadline=None)
def test_the_view_is_the_log_whatever_happens_to_the_line(script: list[tuple[str, int]], seed: int) -> None:
    rng = random.Random(seed)
    events = events_of(script)
    server = Server(events, rng)
    core = ClientCore(rng=rng, new_id=ulid_factory(lambda: 0, rng), now=0.0)
    track = Track("s", offset=rng.choice([None, 0]))
    core.attach(track)
    clock = 0.0
    applied: list[Event] = []
    line: list[Frame] = []
    for turn in range(120):
        calm = turn >= 60  # nothing is lost any more: everything must arrive
        clock += 0.01
        server.grow()
        if core.link is Link.OFFLINE:
            clock = max(clock, core.dial_at)
            core.dialing()
            core.opened(clock)
            line = [{"type": "ready", "connection": "c"}]
        for frame in core.take_outbox():
            if frame["type"] == "hello":
                line += [f for e in frame.get("resume", []) for f in server.answer(e.get("epoch"), e.get("offset"))]
            elif frame["type"] == "subscribe":
                line += [{"type": "ok", "id": frame["id"]}]
                line += server.answer(frame.get("epoch"), frame.get("offset"))
        if not calm and rng.random() < 0.1:
            core.closed(1006, "", clock)
            continue
        line += server.events(max(0, server.top - rng.randint(0, 4)), server.top)  # live, and some of it again
        events_out = [index for index, frame in enumerate(line) if frame["type"] == "event"]
        if not calm and events_out and rng.random() < 0.2:
            del line[rng.choice(events_out)]  # lost: the client must notice, and never show a hole
        count = len(line) if calm else rng.randint(1, 8)
        batch, line = line[:count], line[count:]
        core.received(batch, 100 * len(batch), clock)
        core.tick(clock)
        assert core.take_close() in (None, 1001)
        for notice in core.take_notices():
            if isinstance(notice, Snapshot):
                applied.clear()
            elif isinstance(notice, Event):
                assert not applied or notice.first_offset == applied[-1].offset + 1
                applied.append(notice)
        assert core.error is None
        if track.offset:
            assert shown(track.view) == shown(folded(events[: track.offset]))
    assert track.phase is Phase.LIVE
    assert track.offset == len(events)


@given(scripts, st.integers(0, 2**32))
@settings(max_examples=60 if settings().derandomize else 200, deadline=None)
def test_a_snapshot_and_its_tail_are_the_log(script: list[tuple[str, int]], seed: int) -> None:
    rng = random.Random(seed)
    events = events_of([*script, ("open", 5)])
    cut = rng.randint(0, len(events))
    view = View.from_state(folded(events[:cut]).to_state())
    for event in events[cut:]:
        view.apply(event)
    assert shown(view) == shown(folded(events))


@given(st.lists(st.sampled_from(["submit", "cut", "ok", "later", "refuse", "tick"]), max_size=60), st.integers(1, 9))
@settings(max_examples=60 if settings().derandomize else 300, deadline=None)
def test_every_command_is_answered_once_and_repeated_by_its_id(script: list[str], in_flight: int) -> None:
    rng = random.Random(5)
    core = ClientCore(rng=rng, new_id=ulid_factory(lambda: 0, rng), now=0.0, limits=Limits(in_flight_max=in_flight))
    clock = 0.0
    submitted: dict[str, Frame] = {}
    answered: dict[str, int] = {}
    out: dict[str, Frame] = {}  # sent on this connection and not answered

    def look() -> None:
        for frame in core.take_outbox():
            if frame["type"] == "session.warm":
                assert frame["id"] not in answered
                assert submitted.setdefault(frame["id"], frame) == frame
                out[frame["id"]] = frame
        assert len(out) <= in_flight
        for notice in core.take_notices():
            if isinstance(notice, Answered):
                answered[notice.id] = answered.get(notice.id, 0) + 1

    def connect() -> None:
        nonlocal clock
        clock = max(clock, core.dial_at)
        core.dialing()
        core.opened(clock)
        core.received([{"type": "ready"}], 10, clock)
        look()

    connect()
    asked: list[str] = []
    for move in [*script, *["ok"] * 200]:
        clock += 0.3
        if move == "submit":
            asked.append(core.submit("session.warm", {"session": "s"}, clock))
        elif move == "cut":
            core.closed(1006, "", clock)
            out.clear()
            connect()
        elif move == "tick":
            core.tick(clock)
        elif out:
            command_id = next(iter(out))
            del out[command_id]
            error: Frame = {"type": "server_error", "code": "overloaded", "message": "", "retryable": move == "later"}
            if move == "later":
                error["retry_after_ms"] = 500
            frame = {"type": "ok"} if move == "ok" else {"type": "error", "error": error}
            core.received([{**frame, "id": command_id}], 10, clock)
            core.tick(clock)
        else:
            core.received([{"type": "pong"}], 10, clock)
            core.tick(clock)
        look()
    assert answered == dict.fromkeys(asked, 1)
