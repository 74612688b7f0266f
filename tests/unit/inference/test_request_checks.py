"""What an engine refuses before it computes anything."""

from __future__ import annotations

import pytest

from inference.request_checks import check_model, check_prompt
from inference.simulated import SimulatedEngine, SimulatedOptions
from sessions.model.errors import BadInput

LARGE = SimulatedOptions(model="large")


def test_an_engine_of_one_model_refuses_another() -> None:
    info = SimulatedEngine(LARGE).info
    check_model(info, "")
    check_model(info, "large")
    with pytest.raises(BadInput) as refused:
        check_model(info, "small")
    assert refused.value.code == "model_not_found"


def test_a_prompt_must_leave_room_for_an_answer_where_one_is_requested() -> None:
    check_prompt(99, 5, 100)
    check_prompt(100, 0, 100)
    for num_tokens, max_tokens, code in ((0, 5, "empty_prompt"), (100, 1, "context_length_exceeded")):
        with pytest.raises(BadInput) as refused:
            check_prompt(num_tokens, max_tokens, 100)
        assert refused.value.code == code
