"""What routing says to a command: a receipt, a switch with its reason, a refusal; nothing where nothing is routed."""

from __future__ import annotations

from typing import Any

from inference.simulated import SimulatedEngine, SimulatedOptions
from sessions.actor.model_router import Directed, ModelRouter, tokens_before
from sessions.machine.inputs_and_effects import ModelChosen
from sessions.model import commands as cm
from sessions.model.errors import Conflict, Forbidden, Unavailable
from sessions.model.generation import EngineInfo, KVPlace
from sessions.model.request import Request, request_of
from sessions.model.types import LOCAL_PRINCIPAL, SessionKey, UnixMs
from sessions.routing.models_file import NO_POOLS, ModelPools, read_models
from sessions.routing.turn_facts import PoolState
from tests.support.machine.machine_fixture import SESSION, Ground

HARD = "Refactor this and explain why it is safe:\n```python\ndef take(queue):\n    return queue.pop()\n```"
FILE = '[models.sim]\nquality = 1\n[models.big]\nquality = 2\n[aliases]\nauto = ["sim", "big"]\n'
STATE = PoolState(1, 0.0, 8_192, tools=True, sampling=None)


class PlacedEngine:
    """An engine that has so many tokens of every session."""

    def __init__(self, tokens: int = 0) -> None:
        self.info: EngineInfo = SimulatedEngine(SimulatedOptions(model="sim")).info
        self.tokens = tokens

    def place(self, key: SessionKey) -> KVPlace:
        return KVPlace("device", self.tokens)


class Routed:
    """A router over a machine's ground."""

    def __init__(self, text: str = FILE, *, alias: str = "auto", model: str | None = None) -> None:
        self.pools: ModelPools = read_models(text) if text else NO_POOLS
        self.states = {"sim": STATE, "big": STATE}
        self.engine = PlacedEngine()
        self.counted: list[str] = []
        self.ground = Ground()
        self.ground.alias = alias
        self.ground.create(model=model)
        self.router = ModelRouter(
            lambda: self.pools,
            self.engine,  # type: ignore[arg-type]
            lambda: self.states,
            replica="r1",
            now_ms=lambda: UnixMs(self.ground.now),
            count=self.counted.append,
        )

    def request(self, text: str, **more: Any) -> Request:
        command = cm.MessageCreate(id=self.ground.name(), session=SESSION, content=text, **more)
        return request_of(LOCAL_PRINCIPAL, command)

    def direct(self, text: str, *, keep_model: str = "") -> Directed | None:
        return self.router.direct(self.ground.machine, self.request(text), keep_model=keep_model)


def receipt(directed: Directed | None) -> dict[str, Any]:
    assert directed is not None and directed.receipt is not None
    return directed.receipt


def test_a_turn_for_another_model_sends_the_session_there_with_its_reason_and_its_home() -> None:
    routed = Routed()
    routed.engine.tokens = 40
    directed = routed.direct(HARD)
    assert directed is not None and directed.switch is not None and directed.switch.routing is not None
    plan, leaving = directed.switch, directed.switch.routing
    assert (plan.model, plan.home, leaving.target, leaving.source) == ("big", "", "big", "sim")
    assert (leaving.homes["sim"].replica, leaving.homes["sim"].tokens) == ("r1", 40)
    stays = receipt(routed.direct(HARD, keep_model="no_replica"))
    assert (stays["model"], stays["why"]) == ("sim", "no_replica")


def test_another_model_waits_for_no_answer_and_its_refusal_says_what_to_do() -> None:
    routed = Routed("", alias="", model="sim")
    routed.ground.say("Tell me a story.")
    for queue in (False, True):
        directed = routed.router.direct(routed.ground.machine, routed.request("And you?", model="big", queue=queue))
        assert directed is not None and isinstance(directed.refused, Conflict)
        assert (directed.refused.code, directed.refused.param) == ("response_in_progress", "model")
        assert "then send this again" in str(directed.refused) and "queue" not in str(directed.refused)


def test_one_that_came_for_a_turn_answers_it_with_the_reason_and_is_counted() -> None:
    routed = Routed()
    directed = routed.direct(HARD)
    assert directed is not None and directed.switch is not None and directed.switch.routing is not None
    routed.ground.input(ModelChosen(directed.switch.routing))
    routed.ground.default_model = "big"
    routed.ground.activate(cause="handoff")
    routed.engine.info = SimulatedEngine(SimulatedOptions(model="big")).info
    arrived = receipt(routed.direct("Thanks!"))
    assert (arrived["model"], arrived["from"], arrived["why"]) == ("big", "sim", "first_turn")
    assert routed.counted == ["first_turn"]


def test_what_a_tenant_may_not_use_is_refused() -> None:
    routed = Routed('default = "auto"\n' + FILE + '[tenants.local]\nallow = ["big"]\n', alias="", model="sim")
    directed = routed.direct("Hello")
    assert directed is not None and isinstance(directed.refused, Forbidden)


def test_a_named_models_session_that_is_elsewhere_goes_home_or_waits() -> None:
    routed = Routed(alias="", model="big")
    directed = routed.direct("Hello")
    assert directed is not None and directed.switch is not None
    assert (directed.switch.model, directed.switch.routing) == ("big", None)
    del routed.states["big"]
    waits = routed.direct("Hello")
    assert waits is not None and isinstance(waits.refused, Unavailable) and waits.refused.code == "no_replica"


def test_how_long_a_conversation_is_is_read_from_its_last_answer() -> None:
    ground = Ground()
    ground.create(instructions="x" * 400)
    assert tokens_before(ground.state) == 100
    response_id = ground.say("y" * 400).response_id
    assert response_id is not None and tokens_before(ground.state) == 200
    ground.answer(response_id)
    assert tokens_before(ground.state) > 0
