"""What names an answer that may be given again, and what of an engine's output is kept for it."""

from __future__ import annotations

from array import array
from typing import Any

import msgspec
import pytest

from sessions.machine.state import Open
from sessions.model.generation import Chunk, EngineInfo, drawn_seed
from sessions.model.types import Sampling, SessionId, SessionKey, TenantId, TextOptions, Tool
from sessions.turn.ledger import PromptPlan
from sessions.turn.result_cache import (
    ANSWER_BYTES_MAX,
    ResultLookup,
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


@pytest.mark.parametrize("field", Sampling.__struct_fields__)
def test_every_sampling_parameter_changes_the_name(field: str) -> None:
    """A new one without a value here fails: it must be considered."""
    open_ = greedy()
    changed = msgspec.structs.replace(open_.sampling, **{field: OTHER_SAMPLING[field]})
    other = msgspec.structs.replace(open_, sampling=changed)
    assert request_name(open_, PLAN, **CONTEXT) != request_name(other, PLAN, **CONTEXT)


@pytest.mark.parametrize(
    "change",
    [
        {"engine": msgspec.structs.replace(INFO, model="other")},
        {"engine": msgspec.structs.replace(INFO, build="other")},
        {"engine": msgspec.structs.replace(INFO, model_fingerprint="other")},
        {"tokenizer": "other"},
        {"policy": "other"},
        {"adapter": "other"},
        {"tools": (Tool(name="f"),)},
    ],
)
def test_what_it_depends_on_besides_changes_the_name(change: dict[str, Any]) -> None:
    open_ = greedy()
    assert request_name(open_, PLAN, **CONTEXT) != request_name(open_, PLAN, **{**CONTEXT, **change})


def test_no_field_runs_into_the_next() -> None:
    """However names are cut, two different requests have two names."""
    names = set()
    for text in ("ab|c", 'ab"c', "ab\0c", "ab,c", "abc"):
        for cut in range(len(text) + 1):
            engine = msgspec.structs.replace(INFO, model=text[:cut], build=text[cut:])
            for context in (
                {**CONTEXT, "engine": engine},
                {**CONTEXT, "tokenizer": text[:cut], "policy": text[cut:]},
                {**CONTEXT, "tokenizer": text[:cut], "adapter": text[cut:], "policy": ""},
            ):
                names.add((repr(sorted(context.items())), request_name(greedy(), PLAN, **context)))
    assert len({name for _, name in names}) == len({context for context, _ in names})


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


def test_what_is_discarded_or_too_long_is_not_kept() -> None:
    recorder = ResultLookup(KEY, b"name", PLAN, None)
    recorder.record(Chunk((1,), "x"))
    recorder.discard()
    recorder.record(Chunk((1,), "x"))
    recorder.close()
    assert recorder.recorded is None
    long = ResultLookup(KEY, b"name", PLAN, None)
    long.record(Chunk((1,), "x" * (ANSWER_BYTES_MAX + 1)))
    long.close()
    assert long.recorded is None
