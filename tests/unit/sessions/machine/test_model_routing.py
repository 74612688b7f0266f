"""What the log says of a routed session's model: leaving, arriving, and never going on with a turn on another one."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from sessions.machine.event_writer import CallArguments, CallBegin
from sessions.machine.inputs_and_effects import ModelChosen
from sessions.machine.model_routing import ROUTING_NOTE, alias_of
from sessions.machine.routed_turns import ROUTING, RoutedTurns
from sessions.model import commands as cm
from sessions.model import events as ev
from sessions.model.types import FunctionCallOutput, Tool
from tests.support.machine.machine_fixture import SESSION, Ground

LEAVING = ev.SessionRouting(alias="auto", target="big", source="sim", why="hard", tokens=7, command="c")


def receipt(**more: Any) -> dict[str, Any]:
    return {ROUTING: {"model": "sim", "why": "steady", "score": 0.2, "level": 0.3, "calm": 1, "tokens": 0, **more}}


def routed() -> Ground:
    ground = Ground()
    ground.alias = "auto"
    ground.create()
    return ground


def routing(ground: Ground) -> ev.SessionRouting:
    info = ground.state.info
    assert info is not None and info.routing is not UNSET
    return info.routing


def test_a_session_of_an_alias_has_its_replicas_model_and_says_both_in_its_head() -> None:
    ground = routed()
    info = ground.state.info
    assert info is not None and (info.model, routing(ground).alias) == ("sim", "auto")
    assert ground.patch is not None and ground.patch.model == "auto=sim"
    plain = Ground()
    plain.create()
    assert plain.patch is not None and plain.patch.model == "sim"


def test_it_leaves_with_its_reason_and_arrives_where_it_is_active_next() -> None:
    ground = routed()
    ground.input(ModelChosen(LEAVING))
    assert routing(ground) == LEAVING and ground.state.routed is None
    ground.default_model = "big"
    ground.activate(cause="handoff")
    info = ground.state.info
    assert info is not None and info.model == "big"
    assert (routing(ground).source, routing(ground).why, routing(ground).target) == ("sim", "hard", "")
    assert ground.state.routed == RoutedTurns(switched=True)
    ground.service = receipt(model="big", why="hard", tokens=7, **{"from": "sim"})
    response_id = ground.say().response_id
    assert response_id is not None
    body = ground.state.open[response_id].body
    assert body.model == "big"
    assert body.metadata[ROUTING_NOTE] == "big from sim: hard, score 0.2, 7 tokens computed anew"
    assert ground.state.routed is not None and not ground.state.routed.switched
    ground.answer(response_id)
    ground.check()


ASKED = ev.SessionRouting(alias="", target="big", source="sim", why="asked", command="c")


def test_a_session_keeps_the_model_that_a_turn_named_from_its_arrival_on() -> None:
    ground = Ground()
    ground.create()
    ground.input(ModelChosen(ASKED))
    assert ground.patch is not None and ground.patch.model == "sim", "until it has arrived it belongs here"
    ground.default_model = "big"
    ground.activate(cause="handoff")
    info = ground.state.info
    assert info is not None and (info.model, info.routing) == ("big", UNSET)
    assert ground.patch is not None and ground.patch.model == "big"
    ground.check()


def test_one_that_did_not_arrive_there_keeps_its_model() -> None:
    ground = Ground()
    ground.create()
    ground.input(ModelChosen(ASKED))
    ground.activate(cause="failover")
    info = ground.state.info
    assert info is not None and info.model == "sim" and not alias_of(info)
    ground.check()


def test_a_turn_may_call_the_model_by_an_alias_or_by_its_own_name_again() -> None:
    ground = Ground()
    ground.create()
    for adopts, shown in (("auto", "auto=sim"), ("sim", "sim")):
        ground.adopts = adopts
        response_id = ground.say().response_id
        assert response_id is not None and ground.patch is not None and ground.patch.model == shown
        ground.answer(response_id)
    ground.check()


def test_it_does_not_leave_in_a_turn() -> None:
    ground = routed()
    ground.say()
    ground.input(ModelChosen(LEAVING))
    assert routing(ground) == ev.SessionRouting(alias="auto")


def test_active_at_another_models_replica_without_having_left_its_pool_was_lost() -> None:
    ground = routed()
    response_id = ground.say().response_id
    assert response_id is not None
    ground.default_model = "big"
    ground.activate()
    assert (routing(ground).why, routing(ground).source) == ("pool_lost", "sim")
    assert not ground.state.open and ground.state.answers[response_id].reason == "recovery_incompatible"
    ground.check()


def test_a_tool_loop_ends_with_its_model() -> None:
    ground = routed()
    ground.ok(cm.SessionUpdate(id=ground.name(), session=SESSION, tools=(Tool(name="look", parameters={}),)))
    response_id = ground.say().response_id
    assert response_id is not None
    ground.write(response_id, CallBegin("look"), CallArguments("{}"))
    ground.finish(response_id)
    assert response_id in ground.state.awaiting
    ground.default_model = "big"
    ground.activate()
    assert not ground.state.busy
    (output,) = [each for each in ground.state.items.values() if isinstance(each, FunctionCallOutput)]
    assert (output.output, output.is_error) == ("model_unavailable", True)
    ground.check()


def test_a_response_that_waited_while_the_session_moved_has_no_receipt_of_another_model() -> None:
    ground = routed()
    first = ground.say().response_id
    ground.service = receipt(model="other")
    waiting = ground.say(queue=True).response_id
    assert first is not None and waiting is not None
    ground.answer(first)
    assert ROUTING not in (ground.state.open[waiting].body.service or {})
