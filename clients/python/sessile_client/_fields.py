"""What commands may carry beside what they are about, as types: checked by type checkers, passed on as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict


class Sampling(TypedDict, total=False):
    """How an answer is drawn. Names are those of OpenAI's Responses, with the local engines' beside them."""

    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    frequency_penalty: float | None
    presence_penalty: float | None
    repeat_penalty: float | None
    seed: int | None
    max_output_tokens: int | None
    stop: str | Sequence[str] | None
    logit_bias: Mapping[str, float] | None
    logprobs: bool
    top_logprobs: int | None
    tool_choice: str | Mapping[str, Any] | None
    parallel_tool_calls: bool
    text: Mapping[str, Any] | None


class TurnOptions(Sampling, total=False):
    """How an answer is drawn, and by which ``model``, or alias of several: the session has it from this turn on."""

    model: str | None


class Knowledge(TypedDict, total=False):
    """Vector stores that are searched with a message's words before its answer begins. The passages stand in front of
    the message, as parts ``input_passage``; ``[1]`` in the answer cites the one with this ``number``."""

    vector_store_ids: Sequence[str]
    results_max: int
    filters: Mapping[str, Any] | None
    score_min: float


class MessageOptions(TurnOptions, total=False):
    """The options of a turn that brings a message. ``knowledge`` is used in place of the session's; None: nothing."""

    knowledge: Knowledge | None


class Settings(TypedDict, total=False):
    """What a session is made with."""

    model: str | None
    instructions: str | None
    tools: Sequence[Mapping[str, Any]]
    metadata: Mapping[str, Any]
    title: str | None
    knowledge: Knowledge


class Changes(TypedDict, total=False):
    """What can be changed of a session; None clears."""

    instructions: str | None
    tools: Sequence[Mapping[str, Any]] | None
    metadata: Mapping[str, Any] | None
    title: str | None
    context_policy: str | None
    compact_threshold: int | None
    knowledge: Knowledge | None
