"""What makes a turn's score, and that it stays in its bounds whatever the text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.routing.scorer import LOOKED_AT, score_turn

HARD = "Refactor this and explain why it is safe:\n```python\ndef take(queue):\n    return queue.pop()\n```"


def test_a_hard_turn_scores_above_an_easy_one() -> None:
    easy, hard = score_turn("Thanks! And what should I cook tonight?"), score_turn(HARD)
    assert easy.value < 0.3 and easy.why == ()
    assert hard.value > 0.6 and {"code", "reasoning"} <= set(hard.why)


@pytest.mark.parametrize(
    ("text", "feature"),
    [
        ("x" * 500, "length"),
        ("Traceback (most recent call last):", "code"),
        ("Prove it.", "reasoning"),
        ("Как это работает? Расскажи подробнее", "language"),
    ],
)
def test_each_feature_counts_and_is_named(text: str, feature: str) -> None:
    score = score_turn(text)
    assert feature in score.why and score.value > score_turn("Hello").value


def test_tools_and_the_tenants_wish_count() -> None:
    plain = score_turn("Hello").value
    assert score_turn("Hello", tools=2).value > plain
    assert score_turn("Hello", wish=0.5).value == pytest.approx(plain + 0.5)
    assert score_turn("Hello", wish=-1.0).value == 0.0


def test_only_the_ends_of_a_long_text_are_read() -> None:
    filler = "y" * LOOKED_AT
    assert "code" not in score_turn(f"{filler}\n```\n{filler}").why
    assert "code" in score_turn(f"{filler}{filler}\n```\n").why


@given(st.text(max_size=2_000), st.integers(0, 128), st.floats(-1, 1))
def test_a_score_is_between_0_and_1(text: str, tools: int, wish: float) -> None:
    assert 0 <= score_turn(text, tools=tools, wish=wish).value <= 1
