"""Who is let in, to which model, and what is told."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from inference.simulated import SimulatedEngine, SimulatedOptions
from sessions.actor.admission import CALM, PATIENCE, RETRY_MAX_MS, STRETCH_S, TRIAL, Admission, Brownout, admitted
from sessions.actor.model_router import Directed, ModelRouter, tokens_before
from sessions.limits import BrownoutStep, Forecast, Limits, Share, Target
from sessions.machine.inputs_and_effects import Command, ModelChosen, Prepared
from sessions.model import commands as cm
from sessions.model.errors import BadInput, Conflict, Forbidden, Overloaded, Unavailable
from sessions.model.generation import EngineInfo, KVPlace
from sessions.model.request import Request, request_of
from sessions.model.types import LOCAL_PRINCIPAL, CommandId, ResponseId, SessionId, SessionKey, TenantId, UnixMs
from sessions.routing.models_file import NO_POOLS, ModelPools, read_models
from sessions.routing.turn_facts import PoolState
from tests.support.machine.machine_fixture import SESSION, Ground

KEY = SessionKey(TenantId("local"), SessionId("s"))
SMALLER = BrownoutStep(smaller_model=True)
TARGETS = {"default": Target(ttft_ms=1_000, tpot_ms=100), "2": Target(ttft_ms=10_000)}


class FakeEngine:
    """Forecasts what it is told to."""

    def __init__(self, forecast: Forecast | None) -> None:
        self.told = forecast
        self.asked: list[tuple[Share, int]] = []
        self.expected: list[ResponseId] = []
        self.told_smaller: Forecast | None = None
        self.expected_smaller: list[ResponseId] = []
        self.info = EngineInfo(
            model="large", build="b", model_fingerprint="f", context_window=1024, slots=4, sampling=frozenset()
        )

    def with_smaller(self, told: Forecast | None) -> None:
        self.told_smaller = told
        self.info = msgspec.structs.replace(self.info, smaller=msgspec.structs.replace(self.info, model="small"))

    def forecast(self, key: SessionKey, share: Share, new_tokens: int, model: str = "") -> Forecast | None:
        assert model in ("", self.info.smaller_model)
        if model:
            return self.told_smaller
        self.asked.append((share, new_tokens))
        return self.told

    def expect(self, tenant: TenantId, response_id: ResponseId, model: str = "") -> None:
        (self.expected_smaller if model else self.expected).append(response_id)


def forecast(ttft_s: float, *, tpot_s: float = 0.01, position: int = 0) -> Forecast:
    return Forecast(position=position, wait_s=ttft_s, ttft_s=ttft_s, tpot_s=tpot_s)


def made(told: Forecast | None, **limits: Any) -> tuple[Admission, FakeEngine, list[float], list[str]]:
    engine, clock, refused = FakeEngine(told), [0.0], list[str]()
    given = Limits(**{"targets": TARGETS, **limits})
    return Admission(engine, lambda: given, lambda: clock[0], refused.append), engine, clock, refused  # type: ignore[arg-type]


def say(**fields: Any) -> Command:
    command = cm.MessageCreate(id=CommandId("c"), session=KEY.session, content="Hi", **fields)
    return Command(LOCAL_PRINCIPAL, command, b"", prepared=Prepared(b"\0" * 40, "f"))


def test_one_that_waits_is_told_its_place() -> None:
    admission, _, _, _ = made(forecast(0.5, position=3))
    assert admitted(admission, KEY, say()).service == {"queue_position": 3, "expected_wait_ms": 500}


@pytest.mark.parametrize(
    ("told", "why", "after_ms"),
    [(forecast(3.0), "ttft", 3_000), (forecast(0.1, tpot_s=0.2), "tpot", 250), (forecast(500.0), "ttft", RETRY_MAX_MS)],
)
def test_one_that_would_miss_a_target_is_refused_with_a_time(told: Forecast, why: str, after_ms: int) -> None:
    admission, engine, _, refused = made(told)
    error = admitted(admission, KEY, say()).refused
    assert isinstance(error, Overloaded) and error.retry_after_ms == after_ms and error.retryable
    assert refused == [why] and not engine.expected


@pytest.mark.parametrize("targets", [{}, TARGETS])
def test_one_that_finds_the_queue_full_is_refused_with_targets_or_without(targets: dict[str, Target]) -> None:
    admission, engine, _, refused = made(msgspec.structs.replace(forecast(0.5), full=True), targets=targets)
    error = admitted(admission, KEY, say()).refused
    assert isinstance(error, Overloaded) and error.retryable and error.retry_after_ms
    assert refused == ["queue"] and not engine.expected
    engine.told = forecast(0.5)
    assert admitted(admission, KEY, say()).refused is None and len(engine.expected) == 1


def test_one_that_finds_the_engine_idle_is_let_in_however_long_its_prompt_takes() -> None:
    """It would be as late whenever it came: refused now, it would be refused for ever."""
    admission, engine, _, refused = made(Forecast(position=0, wait_s=0.0, ttft_s=9.0, tpot_s=0.0, idle=True))
    assert admitted(admission, KEY, say()).refused is None
    engine.told = forecast(9.0)
    assert isinstance(admitted(admission, KEY, say()).refused, Overloaded) and refused == ["ttft"]


def test_of_those_that_only_their_own_prompts_make_late_one_at_a_time_is_let_in_beside_others() -> None:
    """An engine that always has something to do would refuse them for ever."""
    admission, _, clock, refused = made(Forecast(position=0, wait_s=0.0, ttft_s=9.0, tpot_s=0.01))
    assert admitted(admission, KEY, say()).refused is None
    clock[0] = 8.9
    assert isinstance(admitted(admission, KEY, say()).refused, Overloaded)
    clock[0] = 9.1
    assert admitted(admission, KEY, say()).refused is None and refused == ["ttft"]


def test_the_level_of_brownout_falls_while_nobody_asks() -> None:
    admission, _ = browned(60, BrownoutStep(extras=False))
    clock = [10.0]
    admission._clock = lambda: clock[0]
    assert admission.level == 2 and not admission.gives_extras
    clock[0] = 300.0
    assert admission.level == 0 and admission.gives_extras


def test_what_begins_no_answer_or_is_refused_already_is_not_asked() -> None:
    admission, engine, _, _ = made(forecast(99.0))
    wrong = Command(LOCAL_PRINCIPAL, say().command, b"", refused=BadInput("invalid_request", "no"))
    output = cm.ToolOutput(id=CommandId("c"), session=KEY.session, call_id="x", output="y")  # type: ignore[arg-type]
    for input in (say(respond=False), wrong, Command(LOCAL_PRINCIPAL, output, b"")):
        assert admitted(admission, KEY, input) == input
    assert not engine.asked
    assert admitted(None, KEY, say()) == say()
    assert admitted(made(None)[0], KEY, say()) == say(), "an engine that makes no forecast lets all in"


def browned(*steps: int | BrownoutStep) -> tuple[Admission, FakeEngine]:
    """An admission at its second step, and an engine that serves well again."""
    admission, engine, clock, _ = made(forecast(9.0), brownout=steps)
    for _ in range(2):
        for _ in range(20):
            admitted(admission, KEY, say())
        clock[0] += STRETCH_S
    engine.told = forecast(0.1)
    admitted(admission, KEY, say())
    assert admission.brownout.level == 2
    return admission, engine


def test_extras_go_where_the_step_says_so_and_that_is_told() -> None:
    admission, _ = browned(200, BrownoutStep(extras=False))
    assert not admission.gives_extras
    input = admitted(admission, KEY, say(logprobs=True, top_logprobs=5, max_output_tokens=400))
    assert input.service == {"brownout": 2, "without": ["logprobs"]}, "and nothing is cut: the step does not say so"
    assert isinstance(input.command, cm.MessageCreate) and input.command.max_output_tokens == 400
    assert not input.command.logprobs and input.command.top_logprobs is None
    assert admitted(admission, KEY, say()).service == {"brownout": 2}, "it asked for none"


def test_what_is_cut_short_is_told_so() -> None:
    admission, _ = browned(200, 50)
    input = admitted(admission, KEY, say())
    assert input.service == {"brownout": 2, "max_output_tokens": 50}
    assert isinstance(input.command, cm.MessageCreate) and input.command.max_output_tokens == 50
    short = admitted(admission, KEY, say(max_output_tokens=9))
    assert isinstance(short.command, cm.MessageCreate) and short.command.max_output_tokens == 9


def test_the_smaller_model_takes_what_the_model_would_be_too_late_for_and_nothing_else() -> None:
    admission, engine = browned(200, SMALLER)
    engine.with_smaller(forecast(0.2, position=2))
    input = admitted(admission, KEY, say())
    assert (input.model, input.service, input.refused) == ("", {"brownout": 2}, None), "the model is in time"
    engine.told = forecast(9.0)
    before = len(engine.expected)
    input = admitted(admission, KEY, say())
    assert input.refused is None and input.model == "small"
    assert input.service == {"brownout": 2, "queue_position": 2, "expected_wait_ms": 200}, "its place is with that one"
    assert len(engine.expected) == before and len(engine.expected_smaller) == 1


def test_a_turn_that_the_model_might_be_too_slow_for_goes_to_the_smaller_one_if_that_is_faster() -> None:
    admission, engine = browned(200, SMALLER)
    engine.told = forecast(0.1, tpot_s=0.09)  # of 0.1: a mean, so that half of the answers are slower
    engine.with_smaller(forecast(0.1, tpot_s=0.02))
    assert admitted(admission, KEY, say()).model == "small"
    engine.with_smaller(forecast(0.1, tpot_s=0.09))
    input = admitted(admission, KEY, say())
    assert (input.model, input.refused) == ("", None), "nobody is surer"


def test_where_there_is_none_the_step_holds_without_it_and_each_file_is_told_so_once() -> None:
    given = [Limits(targets=TARGETS, brownout=(BrownoutStep(smaller_model=True, output_tokens=9),))]
    engine = FakeEngine(forecast(0.1))
    with capture_logs() as said:
        admission = Admission(engine, lambda: given[-1], lambda: 0.0)  # type: ignore[arg-type]
        admission.brownout.level = 1
        for _ in range(3):
            input = admitted(admission, KEY, say())
        assert (input.model, input.service) == ("", {"brownout": 1, "max_output_tokens": 9})
        assert [each["event"] for each in said] == ["smaller_model_omitted"]
        given.append(Limits(targets=TARGETS, brownout=(SMALLER,)))
        admitted(admission, KEY, say())
        assert len(said) == 2, "the file was read again, and still asks for it"
        engine.with_smaller(forecast(0.1))
        Admission(engine, lambda: given[-1], lambda: 0.0)  # type: ignore[arg-type]
        assert len(said) == 2


class Stretches:
    """A brownout whose turns the smaller model takes at level 1; the model itself is late for `late` of them."""

    def __init__(self) -> None:
        self.brownout = Brownout()
        self.now = 0.0
        self.late = 0

    def pass_by(self, number: int = 1) -> list[int]:
        """The level after each stretch."""
        levels = []
        for _ in range(number):
            for turn in range(20):
                late = turn < self.late
                self.brownout.seen(self.now, 1, refused=late and not self.brownout.level, missed=late)
            self.now += STRETCH_S
            levels.append(self.brownout.level)
        return levels


def test_the_level_stays_while_the_model_alone_would_be_too_late_and_goes_back_when_it_would_not() -> None:
    """Turns that the smaller model takes are refused no more: judged by that, the level would flap."""
    stretches = Stretches()
    stretches.late = 10
    assert stretches.pass_by(6) == [0, 1, 1, 1, 1, 1]
    stretches.late = 0
    assert stretches.pass_by(CALM + 2) == CALM * [1] + [0, 0]


def test_when_nobody_is_refused_the_level_before_is_tried_ever_more_seldom() -> None:
    """What the smaller model computes makes the model late: that alone must not hold the level for ever."""
    stretches = Stretches()
    stretches.late = 10
    levels = stretches.pass_by(1_000)
    tried = [index for index, (a, b) in enumerate(itertools.pairwise(levels)) if b < a]
    assert [later - earlier for earlier, later in itertools.pairwise(tried)][:4] == [27, 51, 99, 195]
    assert len(tried) < 10
    assert levels.count(0) == 1 + 2 * len(tried), "each for two stretches, the first of which is not judged"
    while stretches.pass_by() != [0]:
        continue
    stretches.late = 1
    assert stretches.pass_by(100) == 100 * [0], "now it went well"
    stretches.late = 10
    levels = stretches.pass_by(PATIENCE + TRIAL)
    down = levels.index(1)
    assert levels.index(0, down) - down == PATIENCE + 1, "and the next trial comes as early as the first did"


def test_a_level_at_which_many_are_refused_is_never_left_on_trial() -> None:
    engine, now = FakeEngine(forecast(9.0)), [0.0]
    limits = Limits(targets=TARGETS, brownout=(SMALLER,))
    engine.with_smaller(forecast(9.0))
    admission = Admission(engine, lambda: limits, lambda: now[0])  # type: ignore[arg-type]
    for _ in range(5 * PATIENCE):
        for _ in range(20):
            admitted(admission, KEY, say())
        now[0] += STRETCH_S
        assert admission.brownout.level == (now[0] > STRETCH_S + 0.1) * 1


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
