"""Translates sampling parameters into llama-server's.

Fields that a request leaves out keep llama-server's defaults (temperature 0.8, top_k 40, top_p 0.95, min_p 0.05).
Penalties look at the last 64 tokens, prompt included: a continuation whose prompt ends in the emitted tokens
is penalised exactly as the unfailed run would have been. A grammar begins with its run and knows nothing of the
prompt, so constrained output cannot be continued; that is refused with the code `recovery_incompatible`.
"""

from __future__ import annotations

from typing import Final

from inference.structured_output import output_schema
from sessions.model.errors import BadInput
from sessions.model.generation import GenerationRequest
from sessions.model.types import Json

HONOURED: Final = frozenset(
    {
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "frequency_penalty",
        "presence_penalty",
        "repeat_penalty",
        "seed",
        "max_output_tokens",
        "logit_bias",
        "logprobs",
        "top_logprobs",
        "text",
    }
)

_DIRECT: Final = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repeat_penalty",
)
_SEED_BITS: Final = 0x7FFF_FFFF  # llama-server reads 32 bits, and all ones mean "draw one"


def completion_parameters(request: GenerationRequest, vocabulary_size: int) -> dict[str, Json]:
    """The sampling part of a /completion request. Raises BadInput for what cannot be honoured."""
    sampling = request.sampling
    parameters: dict[str, Json] = {
        "n_predict": request.max_tokens,
        "seed": (request.seed ^ (request.seed >> 31)) & _SEED_BITS,
    }
    for name in _DIRECT:
        value = getattr(sampling, name)
        if value is not None:
            parameters[name] = value
    if sampling.logit_bias:
        parameters["logit_bias"] = _logit_bias(sampling.logit_bias, vocabulary_size)
    if sampling.logprobs or sampling.top_logprobs:
        parameters["n_probs"] = max(1, sampling.top_logprobs or 0)
    schema = output_schema(sampling)
    if schema is not None:
        if request.emitted:
            raise BadInput(
                "recovery_incompatible", "An answer in a fixed format cannot be continued after its beginning."
            )
        parameters["json_schema"] = schema
    return parameters


def _logit_bias(biases: dict[str, float], vocabulary_size: int) -> list[list[Json]]:
    pairs: list[list[Json]] = []
    for name, bias in biases.items():
        token = int(name) if name.isascii() and name.isdigit() else vocabulary_size
        if token >= vocabulary_size:
            raise BadInput("invalid_logit_bias", f"{name!r} is no token id of this model.", param="logit_bias")
        pairs.append([token, False if bias <= -100 else bias])  # false: never
    return pairs


def public_logprobs(probabilities: list[dict[str, Json]], top: int) -> tuple[Json, ...]:
    """llama-server's `completion_probabilities` in the shape of OpenAI's `logprobs`."""
    return tuple(
        {
            **_public(entry),
            "top_logprobs": [_public(other) for other in entry.get("top_logprobs", [])[:top]],
        }
        for entry in probabilities
    )


def _public(entry: dict[str, Json]) -> dict[str, Json]:
    return {"token": entry["token"], "logprob": entry["logprob"], "bytes": entry["bytes"]}
