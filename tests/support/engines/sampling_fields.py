"""Requests that set one field of `Sampling` each: what an engine lists as honoured is compared with what it does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from sessions.model.generation import HONOURED_BY_TURNS, GenerationRequest
from sessions.model.types import Sampling, TextOptions
from testbed.engine_client import key, request

VALUES: Final[dict[str, Any]] = {
    "temperature": 0.0,
    "top_p": 0.4,
    "top_k": 5,
    "min_p": 0.1,
    "frequency_penalty": 0.5,
    "presence_penalty": 0.5,
    "repeat_penalty": 1.2,
    "seed": 3,
    "max_output_tokens": 9,
    "stop": "x",
    "ignore_eos": True,
    "min_tokens": 12,
    "stop_token_ids": (5,),
    "logit_bias": {"5": 1.0},
    "logprobs": True,
    "top_logprobs": 2,
    "tool_choice": "none",
    "parallel_tool_calls": False,
    "thinking": True,
    "thinking_tokens": 9,
    "effort": "low",
    "text": TextOptions({"type": "json_object"}),
}
"""A value of each field that is not its default: a new field gets one here."""


def each_field() -> dict[str, Sampling]:
    """Returns a `Sampling` for each field that an engine must honour, with only this field set."""
    assert VALUES.keys() == set(Sampling.__struct_fields__), "a field of Sampling has no value in VALUES"
    return {name: Sampling(**{name: value}) for name, value in VALUES.items() if name not in HONOURED_BY_TURNS}


def fields_read(parameters_of: Callable[[GenerationRequest], object]) -> set[str]:
    """Returns the fields that change an engine's parameters: `parameters_of` a request of one token."""

    def parameters(sampling: Sampling) -> object:
        seed = 7 if sampling.seed is None else sampling.seed  # the turn draws one if the client names none
        return parameters_of(request(key("a"), (1,), sampling=sampling, seed=seed))

    plain = parameters(Sampling())
    return {name for name, sampling in each_field().items() if parameters(sampling) != plain}
