"""Plans vLLM's steps by time: those that decode first, then short rests of prompts, then what is left to long ones.

vLLM fills a step in the order of its running requests, and looks at those that wait only where tokens are left over; so
one long prompt takes whole steps, and a session that was restored waits behind it. Here the step is as large as the
measured rate fills in the target time (`StepBudget`), running requests are ordered, and a part of the step is kept from
long prompts for as long as somebody waits who could begin:

    step of 100 | 3 decode: 3 | a rest of 40 | long prompts: 57, or 28 beside one that waits
    step of 200 | a long prompt that is alone: 200

It decides sizes and order alone; what is computed, and whose blocks are taken, stays vLLM's. It knows of vLLM only the
shapes of its objects, so that it is tested without vLLM.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final, NamedTuple

from inference.step_budget import LEAST_BESIDE, StepBudget

STEP_TARGET: Final = "sessile_step_target_ms"  # in vLLM's `additional_config`
_STEPS_MAX: Final = 64  # steps in progress; a pipeline has a few


class StepPlan(NamedTuple):
    tokens: int  # of all requests in the step
    long_max: int  # of one request, so that some are left for waiting ones; 0: no bound


class StepPlanner:
    """Decides how many tokens of each prompt the next step computes. The scheduler calls `plan` before each step,
    `begun` when vLLM has scheduled the step, and `ended` with its results."""

    def __init__(
        self, budget: StepBudget, most: int, *, clock: Callable[[], float], drafted: int = 0, overlaps: bool = False
    ) -> None:
        """`most`: how many tokens a step can hold. `drafted`: how many tokens a decoding request computes beside its
        next one. `overlaps`: whether vLLM plans a step before the one before it has ended."""
        self._budget = budget
        self._most = most
        self._decode_max = 1 + drafted
        self._overlaps = overlaps
        self._clock = clock
        self._begun_s: dict[int, float] = {}
        self._ended_s = 0.0
        self._running: set[str] = set()
        self._passed_over: set[str] = set()  # wait for something other than tokens, such as blocks

    def plan(self, running: list[Any], ready: Collection[Any], *, num_unready: int = 0) -> StepPlan:
        """Plans the next step, and sorts `running` for it. `ready`: the waiting requests that could begin now.
        `num_unready`: how many requests wait for their KV, a grammar or a place, and might begin in a later step."""
        ids = {request.request_id for request in running}
        if self._running - ids:  # what somebody leaves may be what another one waits for
            self._passed_over.clear()
        self._running = ids
        decodes = sum(min(_lacks(request), self._decode_max) for request in running if self._decodes(request))
        alone = not decodes and len(running) + len(ready) + num_unready == 1 and not self._overlaps
        step = self._budget.tokens(decoding=decodes > 0, alone=alone)
        tokens = min(self._most, max(step, decodes + LEAST_BESIDE))
        running.sort(key=lambda request: self._order(request, step))
        newcomers = sum(request.request_id not in self._passed_over for request in ready)
        rests = [_lacks(request) for request in running if not self._decodes(request)]
        num_long = sum(rest > step for rest in rests)
        if not newcomers or num_long + newcomers < 2:
            return StepPlan(tokens, 0)
        left = max(tokens - decodes - sum(rest for rest in rests if rest <= step), LEAST_BESIDE)
        return StepPlan(tokens, max(self._decode_max, left // (num_long + newcomers)))

    def begun(self, output: Any, plan: StepPlan, left_waiting: Collection[Any]) -> None:
        """Notes a step's begin. `output`: vLLM's schedule by the plan. `left_waiting`: requests that could have begun
        and did not."""
        if len(self._begun_s) >= _STEPS_MAX:  # those of steps that failed
            self._begun_s.clear()
        self._begun_s[id(output)] = self._clock()
        waiting = {request.request_id for request in left_waiting}
        if output.total_num_scheduled_tokens < plan.tokens:
            self._passed_over |= waiting
        self._passed_over &= waiting

    def ended(self, output: Any) -> None:
        """Notes that a step has ended. Its duration counts from its begin, or from the end of the step before if that
        ended later."""
        begun_s, now_s = self._begun_s.pop(id(output), None), self._clock()
        if begun_s is not None:
            self._budget.measured(output.total_num_scheduled_tokens, now_s - max(begun_s, self._ended_s))
        self._ended_s = now_s

    def _decodes(self, request: Any) -> bool:
        return _lacks(request) <= self._decode_max

    def _order(self, request: Any, step: int) -> tuple[bool, int]:
        lacks = _lacks(request)
        return (True, request.priority) if lacks > step else (False, lacks)


def _lacks(request: Any) -> int:
    lacks: int = request.num_tokens_with_spec + request.num_output_placeholders - request.num_computed_tokens
    return lacks
