"""The fold of decisions: what a receipt leaves, and that a session sent down knows it until it is back."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from sessions.machine.routed_turns import ROUTING, RoutedTurns, after_response, after_update
from sessions.model import events as ev
from sessions.model.types import ResponseId, UnixMs

INFO = ev.SessionInfo(model="small", created_at=UnixMs(0))


def body(**receipt: Any) -> ev.ResponseBody:
    service = {ROUTING: receipt} if receipt else UNSET
    return ev.ResponseBody(
        id=ResponseId("r"), created_at=UnixMs(0), status="in_progress", model="small", parent_id=None, service=service
    )


def test_a_receipt_leaves_level_and_calm_and_ends_a_switch() -> None:
    before = RoutedTurns(level=0.1, calm=9, switched=True)
    assert after_response(before, body(level=0.4, calm=2, why="hard")) == RoutedTurns(level=0.4, calm=2)
    assert after_response(before, body()) is before
    assert after_response(None, body(level="odd", calm=None)) == RoutedTurns()


def test_who_was_sent_down_is_displaced_until_a_decision_of_another_kind() -> None:
    down = after_response(None, body(level=0.8, calm=0, why="pool_lost"))
    assert down is not None and down.displaced
    still = after_response(down, body(level=0.7, calm=0, why="steady"))
    assert still is not None and still.displaced
    back = after_response(still, body(level=0.7, calm=0, why="hard"))
    assert back is not None and not back.displaced


def test_another_model_is_a_switch_until_its_first_response() -> None:
    assert after_update(None, None, INFO) is None and after_update(None, INFO, INFO) is None
    other = msgspec.structs.replace(INFO, model="large")
    assert after_update(None, INFO, other) == RoutedTurns(switched=True)
    assert after_update(RoutedTurns(level=0.5), INFO, other) == RoutedTurns(level=0.5, switched=True)
