"""What names an answer that may be given again, and what of an engine's output is kept for it."""

from __future__ import annotations

from array import array
from typing import Any

import msgspec
import pytest

from sessions.machine.state import Open
from sessions.model.generation import EngineInfo, drawn_seed
from sessions.model.types import SessionId, SessionKey, TenantId, TextOptions
from sessions.turn.ledger import PromptPlan
from sessions.turn.result_cache import (
    is_deterministic,
    request_name,
)
from tests.support.machine.generation_fixture import open_response

INFO = EngineInfo(
    model="m", build="b", model_fingerprint="f", context_window=100, slots=1, sampling=frozenset({"temperature"})
)
CONTEXT: dict[str, Any] = {"engine": INFO, "tokenizer": "t", "policy": "p", "tools": (), "adapter": ""}
KEY = SessionKey(TenantId("acme"), SessionId("s"))
PLAN = PromptPlan(array("I", [1, 2, 3]), array("I"), 1, 50, 0, None)
OTHER_SAMPLING: dict[str, Any] = {
    "thinking": False,
    "thinking_tokens": 7,
    "effort": "low",
    "temperature": 0.5,
    "top_p": 0.5,
    "top_k": 5,
    "min_p": 0.1,
    "frequency_penalty": 0.5,
    "presence_penalty": 0.5,
    "repeat_penalty": 1.5,
    "seed": 7,
    "max_output_tokens": 9,
    "stop": "x",
    "ignore_eos": True,
    "min_tokens": 3,
    "stop_token_ids": (4,),
    "logit_bias": {"5": 1.0},
    "logprobs": True,
    "top_logprobs": 2,
    "tool_choice": "none",
    "parallel_tool_calls": False,
    "text": TextOptions(format={"type": "json_object"}),
}


def greedy(**sampling: Any) -> Open:
    return open_response(temperature=0, **sampling)


def test_the_response_and_a_seed_that_was_drawn_for_it_are_no_part_of_the_name() -> None:
    one, other = greedy(), greedy()
    other = msgspec.structs.replace(other, body=msgspec.structs.replace(other.body, id="resp_other", created_at=99))
    other.sampling = msgspec.structs.replace(other.sampling, seed=drawn_seed(other.id))
    assert one.sampling.seed != other.sampling.seed
    assert request_name(one, PLAN, **CONTEXT) == request_name(other, PLAN, **CONTEXT)


@pytest.mark.parametrize(
    ("sampling", "deterministic"),
    [({"temperature": 0}, True), ({"temperature": 1.0}, False), ({}, False), ({"temperature": 1.0, "seed": 3}, True)],
)
def test_greedy_answers_and_those_of_a_chosen_seed_are_deterministic(
    sampling: dict[str, Any], deterministic: bool
) -> None:
    assert is_deterministic(open_response(**sampling)) is deterministic
