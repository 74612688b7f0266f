"""Translates sampling parameters into llama-server's.

Fields that a request leaves out keep llama-server's defaults (temperature 0.8, top_k 40, top_p 0.95, min_p 0.05).
Penalties look at the last 64 tokens, prompt included: a continuation whose prompt ends in the emitted tokens
is penalised exactly as the unfailed run would have been. A grammar begins with its run and knows nothing of the
prompt: the rest of a constrained answer is another matter (`grammar_guide`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from inference.llama.vocabulary import Vocabulary
from inference.sampling import direct_parameters, output_schema, token_biases
from sessions.model.errors import BadInput
from sessions.model.generation import GenerationRequest
from sessions.model.types import Json, Sampling

STOP_TOKENS: Final = "stop_token_ids"  # among the parameters; llama-server leaves names alone that it does not know
_SEPARATORS: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
SHOWN_TOKENS: Final = "preserved_tokens"  # llama-server's name of the special tokens that are text
SEED_BITS: Final = 0x7FFF_FFFF  # llama-server reads 32 bits, and all ones mean "draw one"


def check_stop_tokens(sampling: Sampling, vocabulary: Vocabulary) -> None:
    """Raises BadInput for `stop_token_ids` at which the end of an answer could not be noticed."""
    for token in sampling.stop_token_ids:
        if token >= vocabulary.size:
            why = "is no token id of this model"
        elif token in vocabulary.fragments:
            why = "is a part of a character, which this engine never reports by itself: use 'stop' with a text"
        elif sampling.ignore_eos and token in vocabulary.special_ids:
            why = "may end the model's answers, which 'ignore_eos' rules out: leave out one of the two"
        else:
            continue
        raise BadInput("invalid_request", f"stop_token_ids: {token} {why}.", param="stop_token_ids")


def tokens_until_end(request: GenerationRequest) -> int:
    """Returns how many tokens an answer still needs before it may end."""
    return max(0, (request.sampling.min_tokens or 0) - len(request.emitted))


def completion_parameters(
    request: GenerationRequest, vocabulary_size: int, shown: Sequence[str] = ()
) -> dict[str, Json]:
    """Returns the sampling part of a /completion request, which may not end by itself while `tokens_until_end` is not
    0. `shown` are the special tokens that are to be text. `stop_token_ids` are not llama-server's: `LlamaCompletion`
    looks for them. Raises BadInput for what cannot be honoured."""
    sampling = request.sampling
    parameters: dict[str, Json] = {
        "n_predict": request.max_tokens,
        "seed": (request.seed ^ (request.seed >> 31)) & SEED_BITS,
        **direct_parameters(request),
    }
    if shown:
        parameters[SHOWN_TOKENS] = list(shown)
    biases: list[list[Json]] = []
    if sampling.logit_bias:
        given = token_biases(sampling.logit_bias, vocabulary_size)
        biases = [[token, False if bias <= -100 else bias] for token, bias in given]  # false: never
    if sampling.logprobs or sampling.top_logprobs:
        parameters["n_probs"] = max(1, sampling.top_logprobs or 0)
    held = tokens_until_end(request) > 0
    if sampling.ignore_eos or held:
        parameters["ignore_eos"] = True
    if held:
        biases = [pair for pair in biases if pair[0] not in sampling.stop_token_ids]
        biases += [[token, False] for token in sampling.stop_token_ids]
    elif sampling.stop_token_ids:
        parameters[STOP_TOKENS] = list(sampling.stop_token_ids)
    if biases:
        parameters["logit_bias"] = biases
    schema = output_schema(request)
    if schema is not None:
        if sampling.min_tokens:
            raise BadInput(
                "unsupported_parameter",
                "This engine cannot hold an answer in a fixed format to 'min_tokens': leave out one of the two.",
                param="min_tokens",
            )
        parameters["json_schema"] = _separated(schema)
    return parameters


def bans_tokens(parameters: dict[str, Json]) -> bool:
    """Returns whether a token is banned. A ban of all that a grammar allows makes llama-server leave the format, which
    `GrammarGuide` keeps."""
    return any(bias is False for _, bias in parameters.get("logit_bias", ()))


def _separated(schema: Json) -> Json:
    """Returns a schema whose grammar allows one space behind `,` and `:` and no other blank between values. Where any
    number of them is allowed, a model that likes blanks best writes nothing else until its limit."""
    return {**schema, "x-guidance": _SEPARATORS} if isinstance(schema, dict) else schema


def public_logprobs(probabilities: list[dict[str, Json]], top: int) -> tuple[Json, ...]:
    """Returns llama-server's `completion_probabilities` in the shape of OpenAI's `logprobs`."""
    return tuple(
        {
            **_public(entry),
            "top_logprobs": [_public(other) for other in entry.get("top_logprobs", [])[:top]],
        }
        for entry in probabilities
    )


def _public(entry: dict[str, Json]) -> dict[str, Json]:
    """Returns one entry with its text decoded from its bytes: llama-server's own text of a partial character varies."""
    spelling = bytes(entry["bytes"]).decode(errors="replace")
    return {"token": spelling, "logprob": entry["logprob"], "bytes": entry["bytes"]}
