"""Translates sampling parameters into llama-server's.

Fields that a request leaves out keep llama-server's defaults (temperature 0.8, top_k 40, top_p 0.95, min_p 0.05).
Penalties look at the last 64 tokens, prompt included: a continuation whose prompt ends in the emitted tokens
is penalised exactly as the unfailed run would have been. A grammar begins with its run and knows nothing of the
prompt, so constrained output cannot be continued; that is refused with the code `recovery_incompatible`.
"""

from __future__ import annotations

from typing import Final

from inference.sampling import direct_parameters, output_schema, token_biases
from sessions.model.generation import GenerationRequest
from sessions.model.types import Json

_SEPARATORS: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_SEED_BITS: Final = 0x7FFF_FFFF  # llama-server reads 32 bits, and all ones mean "draw one"


def completion_parameters(request: GenerationRequest, vocabulary_size: int) -> dict[str, Json]:
    """The sampling part of a /completion request. Raises BadInput for what cannot be honoured."""
    sampling = request.sampling
    parameters: dict[str, Json] = {
        "n_predict": request.max_tokens,
        "seed": (request.seed ^ (request.seed >> 31)) & _SEED_BITS,
        **direct_parameters(request),
    }
    if sampling.logit_bias:
        biases = token_biases(sampling.logit_bias, vocabulary_size)
        parameters["logit_bias"] = [[token, False if bias <= -100 else bias] for token, bias in biases]  # false: never
    if sampling.logprobs or sampling.top_logprobs:
        parameters["n_probs"] = max(1, sampling.top_logprobs or 0)
    if sampling.ignore_eos:
        parameters["ignore_eos"] = True
    schema = output_schema(request)
    if schema is not None:
        parameters["json_schema"] = _separated(schema)
    return parameters


def _separated(schema: Json) -> Json:
    """A schema by which the grammar puts one space behind `,` and `:` and no other blank between values. Where any
    number of them is allowed, a model that likes blanks best writes nothing else until its limit."""
    return {**schema, "x-guidance": _SEPARATORS} if isinstance(schema, dict) else schema


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
