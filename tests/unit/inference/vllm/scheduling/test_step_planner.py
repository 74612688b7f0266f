"""Steps of vLLM: who is in them with how much, and how large they are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from inference.step_budget import StepBudget
from inference.vllm.scheduling.step_planner import StepPlan, StepPlanner


def request(name: str, lacks: int, priority: int = 0) -> Any:
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
    assert device.planner.plan([request("a", 4_000), request("b", 4_000)], []).tokens in (99, 100)
    device.planner.ended(SimpleNamespace(total_num_scheduled_tokens=5))  # that nobody saw begin


def test_who_waits_for_blocks_keeps_nothing_from_others_until_somebody_has_left() -> None:
    device = Device()
    planner, waiting = device.settled(), [request("new", 71)]
    running = [request("decode", 1), request("long", 4_000)]
    plan = planner.plan(running, waiting)
    assert plan.long_max == 49
    device.begin(plan.tokens, plan, tuple(waiting))
    assert planner.plan(running, waiting).long_max == 49, "the step was full: it waits for tokens"
    device.begin(plan.tokens - 49, plan, tuple(waiting))
    assert planner.plan(running, waiting).long_max == 0
    assert planner.plan(running, [*waiting, request("later", 5)]).long_max == 49
    assert planner.plan(running[1:], waiting).long_max == 50
