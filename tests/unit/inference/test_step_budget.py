"""Steps are as large as the measured rate fills in the target time, within bounds."""

from __future__ import annotations

import pytest

from inference.step_budget import LEAST_ALONE, StepBudget


def step_s(tokens: int, token_s: float, fixed_s: float = 0.0) -> float:
    return fixed_s + tokens * token_s


@pytest.mark.parametrize(("token_s", "expected"), [(0.001, 250), (0.0025, 100), (0.000_01, 2048)])
def test_a_step_holds_what_is_computed_in_the_target_time(token_s: float, expected: int) -> None:
    budget = StepBudget(0.25, 2048)
    assert budget.tokens(decoding=False) == budget.tokens(decoding=True) == LEAST_ALONE, "nothing was measured yet"
    for _ in range(60):
        tokens = budget.tokens(decoding=True)
        budget.measured(tokens, step_s(tokens, token_s))
    assert budget.tokens(decoding=True) == pytest.approx(expected, abs=1)


def test_on_a_machine_that_gets_ten_times_slower_steps_get_smaller_and_larger_again_later() -> None:
    budget = StepBudget(0.25, 2048)
    sizes = []
    for token_s in (0.001, 0.01, 0.001):
        for _ in range(60):
            tokens = budget.tokens(decoding=True)
            budget.measured(tokens, step_s(tokens, token_s))
        sizes.append(budget.tokens(decoding=True))
    assert sizes == pytest.approx([250, 25, 250], abs=1)


def test_a_small_step_says_nothing_of_the_rate() -> None:
    budget = StepBudget(0.25, 2048)
    budget.measured(400, 0.4)
    for _ in range(50):
        budget.measured(5, 0.2)
    assert budget.tokens(decoding=True) == 250
