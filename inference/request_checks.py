"""Refuses requests that an engine cannot serve: another model, no prompt, or one that exceeds the context window."""

from __future__ import annotations

from sessions.model.errors import BadInput
from sessions.model.generation import EngineInfo, GenerationRequest
from sessions.model.types import ResponseId, Sampling, SessionId, SessionKey, TenantId


def check_model(info: EngineInfo, model: str) -> None:
    """Raises BadInput when a request names another model than the engine's only one."""
    if model and model != info.model:
        raise BadInput("model_not_found", f"This engine runs {info.model!r} and no {model!r}.", param="model")


def trial_request(sampling: Sampling) -> GenerationRequest:
    """Makes a request of no session, to check whether an engine can honour these parameters."""
    key = SessionKey(TenantId(""), SessionId(""))
    return GenerationRequest(
        key=key, response_id=ResponseId(""), generation=1, prompt=(), sampling=sampling, seed=0, max_tokens=1
    )


def check_prompt(num_tokens: int, max_tokens: int, context_window: int) -> None:
    """Raises BadInput for an empty prompt, and for one that leaves no room for an answer where one is requested."""
    if not num_tokens:
        raise BadInput("empty_prompt", "There is nothing to answer: the prompt has no tokens.")
    if num_tokens + bool(max_tokens) > context_window:
        raise BadInput(
            "context_length_exceeded",
            f"The prompt has {num_tokens} tokens; this model takes {context_window} together with the answer.",
        )
