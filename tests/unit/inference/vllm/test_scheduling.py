"""Steps of vLLM and the grammars of answers that go on."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from inference.step_budget import StepBudget
from inference.vllm.scheduling.grammar_replay import (
    EMITTED,
    GrammarRefusal,
    GrammarReplays,
    ReplayedGrammar,
    ruled_tokens,
)
from inference.vllm.scheduling.step_planner import StepPlan, StepPlanner

# -- grammar replay
OPEN, CLOSE, END, THOUGHT_END = 1, 2, 3, 9


class Brackets:
    """Takes brackets that close, and then the end."""

    def __init__(self) -> None:
        self.tokens: list[int] = []

    @property
    def depth(self) -> int:
        return sum(1 if token == OPEN else -1 for token in self.tokens if token != END)

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        before = list(self.tokens)
        for token in tokens:
            is_bad = token not in (OPEN, CLOSE, END) or END in self.tokens
            if is_bad or (token == CLOSE and self.depth == 0) or (token == END and self.depth > 0):
                self.tokens = before
                return False
            self.tokens.append(token)
        return True

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        raise NotImplementedError

    def rollback(self, num_tokens: int) -> None:
        self.tokens = self.tokens[: len(self.tokens) - num_tokens]

    def fill_bitmask(self, bitmask: Any, batch_index: int) -> None:
        bitmask[batch_index] = self.depth

    def is_terminated(self) -> bool:
        return END in self.tokens

    def reset(self) -> None:
        self.tokens = []


class Structured:
    """As vLLM's request has it: nothing is seen of a grammar that is being compiled."""

    def __init__(self, grammar: Any) -> None:
        self._grammar = grammar

    @property
    def grammar(self) -> Any:
        if not isinstance(self._grammar, Future):
            return self._grammar
        if not self._grammar.done():
            return None
        return self._grammar.exception() or self._grammar.result()

    @grammar.setter
    def grammar(self, grammar: Any) -> None:
        self._grammar = grammar

    def settled(self) -> Any:
        if isinstance(self._grammar, Future):
            self._grammar.exception(timeout=60)
        return self.grammar


class Thinks:
    """A parser of a model whose thoughts end with a token."""

    def is_reasoning_end(self, input_ids: Sequence[int]) -> bool:
        return THOUGHT_END in input_ids

    def extract_content_ids(self, input_ids: list[int]) -> list[int]:
        return input_ids[input_ids.index(THOUGHT_END) + 1 :]


def request(prompt: list[int], grammar: Any, emitted: int | None) -> Any:
    extra = None if emitted is None else {EMITTED: emitted}
    return SimpleNamespace(
        request_id="r",
        prompt_token_ids=prompt,
        sampling_params=SimpleNamespace(extra_args=extra),
        structured_output_request=Structured(grammar),
    )


@pytest.fixture(params=[False, True], ids=["plain", "speculates"])
def replays(request: pytest.FixtureRequest) -> GrammarReplays:
    return GrammarReplays(lambda _: None, speculates=request.param)


@pytest.mark.parametrize("emitted", range(6))
def test_the_end_of_the_prompt_is_replayed_at_every_cut(replays: GrammarReplays, emitted: int) -> None:
    answer = [OPEN, OPEN, CLOSE, CLOSE, OPEN][:emitted]
    grammar = Brackets()
    going_on = request([7, 8, *answer], grammar, emitted)
    replays.prepare(going_on)
    grammar_then = going_on.structured_output_request.settled()
    assert grammar.tokens == answer
    mask = [0]
    grammar_then.fill_bitmask(mask, 0)
    assert mask == [grammar.depth]
    assert grammar_then.accept_tokens("r", [OPEN]) and grammar.tokens == [*answer, OPEN]


def test_what_begins_its_answer_is_left_alone(replays: GrammarReplays) -> None:
    grammar = Brackets()
    new = request([7, 8, OPEN], grammar, None)
    replays.prepare(new)
    assert new.structured_output_request.grammar is grammar and grammar.tokens == []
    free = SimpleNamespace(structured_output_request=None, sampling_params=None)
    replays.prepare(free)
    free.structured_output_request = Structured(grammar)
    replays.prepare(free)
    assert grammar.tokens == []


def test_nothing_is_seen_of_a_grammar_before_it_was_compiled_and_replayed(replays: GrammarReplays) -> None:
    compiled: Future[Any] = Future()
    fed, go_on = threading.Event(), threading.Event()

    class Slow(Brackets):
        def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
            fed.set()
            go_on.wait(20)
            return super().accept_tokens(request_id, tokens)

    going_on = request([OPEN], compiled, 1)
    replays.prepare(going_on)
    assert going_on.structured_output_request.grammar is None
    compiled.set_result(Slow())
    assert fed.wait(20) and going_on.structured_output_request.grammar is None
    go_on.set()
    assert not isinstance(going_on.structured_output_request.settled(), Exception)


@pytest.mark.parametrize("written", [[CLOSE], [OPEN, 77], [OPEN, CLOSE, END, OPEN]])
def test_what_the_grammar_refuses_fails_the_request(replays: GrammarReplays, written: list[int]) -> None:
    going_on = request(written, Brackets(), len(written))
    replays.prepare(going_on)
    assert isinstance(going_on.structured_output_request.settled(), GrammarRefusal)


def test_a_grammar_that_cannot_be_compiled_fails_with_its_own_error(replays: GrammarReplays) -> None:
    compiled: Future[Any] = Future()
    compiled.set_exception(ValueError("no grammar"))
    going_on = request([OPEN], compiled, 1)
    replays.prepare(going_on)
    assert str(going_on.structured_output_request.settled()) == "no grammar"


def test_a_count_beyond_the_prompt_fails_the_request_and_raises_nothing(replays: GrammarReplays) -> None:
    for count in (3, -1):
        going_on = request([OPEN, OPEN], Brackets(), count)
        replays.prepare(going_on)
        assert isinstance(going_on.structured_output_request.grammar, GrammarRefusal)


def test_a_rollback_ends_where_the_replayed_part_does() -> None:
    grammar = Brackets()
    grammar.accept_tokens("r", [OPEN, OPEN])
    replayed = ReplayedGrammar(grammar, "r", [OPEN, OPEN])
    assert replayed.accept_tokens("r", [OPEN]) and replayed.accept_tokens("r", [CLOSE, OPEN])
    assert not replayed.accept_tokens("r", [77])
    replayed.rollback(2)
    assert grammar.tokens == [OPEN, OPEN, OPEN]
    replayed.rollback(5)
    assert grammar.tokens == [OPEN, OPEN]
    replayed.rollback(1)
    assert grammar.tokens == [OPEN, OPEN]
    replayed.accept_tokens("r", [OPEN])
    replayed.reset()
    assert grammar.tokens == [OPEN, OPEN]
    replayed.rollback(1)
    assert grammar.tokens == [OPEN, OPEN]


def test_thoughts_are_not_replayed() -> None:
    reasoner = Thinks()
    assert ruled_tokens([7, 5, 6], 2, reasoner) == []
    assert ruled_tokens([7, 5, THOUGHT_END, OPEN], 3, reasoner) == [OPEN]
    assert ruled_tokens([7, THOUGHT_END, OPEN, OPEN], 2, reasoner) == [OPEN, OPEN]
    grammar = Brackets()
    thinking = request([7, 5, 6], grammar, 2)
    GrammarReplays(lambda _: reasoner, speculates=False).prepare(thinking)
    assert thinking.structured_output_request.grammar is grammar and grammar.tokens == []


def test_one_that_is_closed_fails_what_comes_later(replays: GrammarReplays) -> None:
    replays.prepare(request([OPEN], Brackets(), 1))
    replays.close()
    late = request([OPEN], Brackets(), 1)
    replays.prepare(late)
    assert isinstance(late.structured_output_request.grammar, RuntimeError)


# -- step planner
def waiting_request(name: str, lacks: int, priority: int = 0) -> Any:
    return SimpleNamespace(
        request_id=name,
        num_tokens_with_spec=5_000,
        num_output_placeholders=0,
        num_computed_tokens=5_000 - lacks,
        priority=priority,
    )


class Device:
    """Computes steps; its clock moves with them."""

    def __init__(self, token_s: float = 0.001, *, most: int = 2_048, drafted: int = 0, overlaps: bool = False) -> None:
        self.now_s = 100.0
        self.token_s = token_s
        budget = StepBudget(0.1, most)
        self.planner = StepPlanner(budget, most, drafted=drafted, clock=lambda: self.now_s, overlaps=overlaps)

    def begin(self, tokens: int, plan: StepPlan | None = None, left: tuple[Any, ...] = ()) -> Any:
        output = SimpleNamespace(total_num_scheduled_tokens=tokens)
        self.planner.begun(output, plan or StepPlan(tokens, 0), left)
        return output

    def step(self, tokens: int) -> None:
        output = self.begin(tokens)
        self.now_s += tokens * self.token_s
        self.planner.ended(output)

    def settled(self) -> StepPlanner:
        self.step(64)
        return self.planner


def test_steps_that_overlap_count_from_the_end_of_the_one_before() -> None:
    device = Device()
    first = device.begin(100)
    device.now_s += 0.05
    second = device.begin(100)
    device.now_s += 0.05
    device.planner.ended(first)
    device.now_s += 0.1
    device.planner.ended(second)
    assert device.planner.plan([waiting_request("a", 4_000), waiting_request("b", 4_000)], []).tokens in (
        99,
        100,
    )
    device.planner.ended(SimpleNamespace(total_num_scheduled_tokens=5))  # that nobody saw begin


def test_who_waits_for_blocks_keeps_nothing_from_others_until_somebody_has_left() -> None:
    device = Device()
    planner, waiting = device.settled(), [waiting_request("new", 71)]
    running = [waiting_request("decode", 1), waiting_request("long", 4_000)]
    plan = planner.plan(running, waiting)
    assert plan.long_max == 49
    device.begin(plan.tokens, plan, tuple(waiting))
    assert planner.plan(running, waiting).long_max == 49, "the step was full: it waits for tokens"
    device.begin(plan.tokens - 49, plan, tuple(waiting))
    assert planner.plan(running, waiting).long_max == 0
    assert planner.plan(running, [*waiting, waiting_request("later", 5)]).long_max == 49
    assert planner.plan(running[1:], waiting).long_max == 50
