"""When a session changes its model: never in a turn, only where it is worth it, back again, and out of a lost pool."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.routing.decision import (
    CandidateModel,
    RoutingDecision,
    TurnSituation,
    decide,
    extra_tokens,
    prefill_s,
    proposed_index,
)
from sessions.routing.models_file import RoutingRules

RULES = RoutingRules(worth_tokens=4_000)
SMALL, LARGE = CandidateModel("small", 1), CandidateModel("large", 2, prefill_per_s=500.0)


def decided(
    current: str,
    score: float,
    prompt: int = 100,
    small: CandidateModel = SMALL,
    large: CandidateModel = LARGE,
    **more: Any,
) -> RoutingDecision:
    made = decide(TurnSituation(current, score, prompt, **more), [small, large], RULES)
    assert made is not None
    return made


def test_the_first_turn_goes_where_its_score_says_and_leans_up() -> None:
    assert decided("", 0.2).model == "small"
    assert decided("", 0.45).model == "large", "within the margin: to go up later costs the conversation"
    assert decided("", 0.9)[:2] == ("large", "first_turn") and decided("", 0.9).tokens == 0


@given(st.floats(0, 1), st.floats(0, 1), st.integers(0, 9), st.sampled_from(["small", "large"]))
def test_nothing_is_switched_in_a_turn(score: float, level: float, calm: int, current: str) -> None:
    made = decided(current, score, in_turn=True, level=level, calm=calm)
    assert made[:2] == (current, "in_turn") and (made.level, made.calm) == (level, calm)


def test_a_hard_turn_goes_up_while_that_costs_little() -> None:
    held = SMALL._replace(kept=900)
    made = decided("small", 0.9, 1_000, small=held, level=0.6)
    assert made[:2] == ("large", "hard") and made.tokens == 900
    assert made.seconds == pytest.approx(1_000 / 500 - 100 / 1_000)
    dear = decided("small", 0.9, 100_000, small=SMALL._replace(kept=99_000), level=0.6)
    assert dear[:2] == ("small", "not_worth_it") and dear.tokens == 0


def test_one_hard_turn_of_an_easy_session_is_worth_less_than_one_of_many() -> None:
    held = SMALL._replace(kept=1_500)
    assert decided("small", 0.9, 1_600, small=held, level=0.1).why == "not_worth_it"
    assert decided("small", 0.9, 1_600, small=held, level=0.8).model == "large"


def test_what_is_lost_anyway_costs_nothing() -> None:
    made = decided("small", 0.9, 50_000, level=0.1)
    assert made[:2] == ("large", "free") and made.tokens == 0, "neither has KV of it"
    kept = decided("small", 0.9, 1_000, small=SMALL._replace(kept=900), large=LARGE._replace(kept=950), level=0.1)
    assert kept[:2] == ("large", "free"), "the model that it left has kept more"


def test_down_only_after_calm_turns_and_back_by_the_same_way() -> None:
    held, level, calm, models = LARGE._replace(kept=300), 0.7, 0, []
    for _ in range(12):
        made = decided("large", 0.1, 320, large=held, level=level, calm=calm)
        level, calm = made.level, made.calm
        models.append(made.model)
        if made.model == "small":
            break
    assert made.why == "calm" and models.index("small") >= RULES.calm_turns - 1


def test_scores_near_the_bound_switch_nothing() -> None:
    held = SMALL._replace(kept=90)
    assert decided("small", RULES.hard + 0.9 * RULES.margin, small=held, level=0.5)[:2] == ("small", "steady")
    held = LARGE._replace(kept=90)
    assert decided("large", RULES.hard - 0.9 * RULES.margin, large=held, level=0.5, calm=9)[:2] == ("large", "steady")


def test_a_lost_pool_is_left_and_come_back_to() -> None:
    made = decided("large", 0.9, large=LARGE._replace(live=False), level=0.9)
    assert made[:2] == ("small", "pool_lost") and made.tokens == 100
    back = decided("small", 0.2, small=SMALL._replace(kept=90), level=0.8, displaced=True)
    assert back.model == "large", "its level says so, though this turn is easy"


def test_a_full_pool_is_left_and_not_gone_to() -> None:
    full = LARGE._replace(load=RULES.full, kept=90)
    assert decided("large", 0.9, large=full, level=0.9)[:2] == ("small", "brownout")
    held = SMALL._replace(kept=90)
    assert decided("small", 0.9, small=held, large=full, level=0.9)[:2] == ("small", "full")
    assert decided("", 0.9, large=full).model == "small"
    both = decided("large", 0.9, small=SMALL._replace(load=9.0), large=full, level=0.9)
    assert both.model == "large", "nowhere is room"


def test_a_model_that_cannot_do_it_is_left() -> None:
    assert decided("small", 0.1, small=SMALL._replace(able=False), level=0.1)[:2] == ("large", "unfit")
    assert decided("small", 0.1, 5_000, small=SMALL._replace(window=4_096), level=0.1).why == "unfit"
    assert decide(TurnSituation("small", 0.1, 100), [SMALL._replace(live=False)], RULES) is None


def test_three_models_share_the_scores() -> None:
    assert [proposed_index(value, 3, 0.5) for value in (0.0, 0.5, 0.74, 0.75, 1.0)] == [0, 1, 1, 2, 2]
    assert proposed_index(1.0, 1, 0.5) == 0


def test_costs_count_what_comes_back_from_memory_by_its_time() -> None:
    situation = TurnSituation("small", 0.5, 1_000)
    away = LARGE._replace(kept=500, on_device=False, restore_per_s=1_000.0)
    assert extra_tokens(situation, SMALL._replace(kept=900), away) == 400
    assert prefill_s(situation, away) == pytest.approx(500 / 500 + 500 / 1_000)


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(10, 900)), min_size=2, max_size=40))
def test_a_session_never_pays_more_for_a_switch_than_it_is_worth(turns: list[tuple[float, int]]) -> None:
    current, level, calm, prompt, kept = "", None, 0, 0, {"small": 0, "large": 0}
    for score, added in turns:
        prompt += added
        held = [SMALL._replace(kept=kept["small"]), LARGE._replace(kept=kept["large"])]
        made = decide(TurnSituation(current, score, prompt, level=level, calm=calm), held, RULES)
        assert made is not None and made.tokens <= RULES.worth_tokens
        assert 0 <= made.level <= 1
        current, level, calm = made.model, made.level, made.calm
        kept[current] = prompt
