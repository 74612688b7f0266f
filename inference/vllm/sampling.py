"""Translates sampling parameters into vLLM's.

Fields that a request leaves out keep vLLM's defaults. A grammar begins with its run and knows nothing of the prompt:
where a run continues an answer in a fixed format, the scheduler replays what was written (`grammar_replay`). Presence
and frequency penalties count what this run decoded: vLLM takes no tokens that an earlier run of the response decoded,
so a continuation is penalised a little less than the unfailed run. Stop strings are not the engine's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

from inference.sampling import direct_parameters, output_schema, token_biases, unfit_continuation
from inference.vllm.scheduling.grammar_replay import EMITTED
from sessions.model.errors import BadInput
from sessions.model.generation import GenerationRequest, TokenScore
from sessions.model.types import Json
from sessions.turn.tool_call_parser import CALL_FORMAT

_IGNORED: Final = frozenset({"not", "if", "then", "else", "dependentRequired", "dependentSchemas"})
_TRAINED_SPACES: Final[
    dict[str, Json]
] = {  # of calls, as models write them: free, they cost as many steps as the words
    "x-guidance": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
}
_NO_SCHEMAS: Final = frozenset({"const", "enum", "default", "examples", "required"})
_OF_SCHEMAS: Final = frozenset(
    {"properties", "patternProperties", "$defs", "definitions"}
)  # by names of anybody's choice


class CheckedParams(SamplingParams):  # type: ignore[misc]  # vLLM is not installed where types are checked
    """Parameters of a run with a grammar. vLLM would check the grammar on our event loop when the request arrives,
    which may take a second. `check_grammar` does so before, in any thread; vLLM then skips its check."""

    def check_grammar(self, llm: Any) -> None:
        """Checks the grammar. Raises ValueError or VLLMClientError, as vLLM's own check does."""
        inputs = llm.input_processor
        super()._validate_structured_outputs(inputs.model_config, inputs.structured_outputs_config, inputs.tokenizer)
        self.is_checked = True

    def _validate_structured_outputs(self, *given: Any) -> None:
        if not getattr(self, "is_checked", False):
            super()._validate_structured_outputs(*given)


def sampling_params(
    request: GenerationRequest,
    *,
    max_tokens: int,
    vocabulary_size: int,
    end_tokens: tuple[int, ...],
    transfer: dict[str, Json],
    special_tags: bool = False,
    replays_grammars: bool = False,
) -> SamplingParams:
    """Returns vLLM's parameters. `special_tags`: the model writes marks of calls or thoughts as special tokens, which
    are kept as text. `replays_grammars`: the scheduler can continue an answer in a fixed format.

    Raises BadInput for what cannot be honoured."""
    sampling = request.sampling
    stops = [*sampling.stop_token_ids, *(() if sampling.ignore_eos else end_tokens)]
    arguments: dict[str, Any] = {"seed": request.seed, "max_tokens": max_tokens, "stop_token_ids": stops}
    if sampling.ignore_eos:
        arguments["ignore_eos"] = True
    if sampling.min_tokens:  # of the whole answer: what an earlier run decoded counts
        arguments["min_tokens"] = min(max(0, sampling.min_tokens - len(request.emitted)), max_tokens)
    arguments |= direct_parameters(request, repeat_penalty="repetition_penalty")
    if sampling.logit_bias:
        arguments["logit_bias"] = dict(token_biases(sampling.logit_bias, vocabulary_size))
    if sampling.logprobs or sampling.top_logprobs:
        arguments["logprobs"] = max(1, sampling.top_logprobs or 0)
    schema = output_schema(request)
    is_call = sampling.text is not None and (sampling.text.format or {}).get("name") == CALL_FORMAT
    extra: dict[str, Json] = {"kv_transfer_params": transfer} if transfer else {}
    if schema is not None and request.emitted:
        if not replays_grammars:
            raise unfit_continuation()
        extra[EMITTED] = len(request.emitted)
    if schema is not None:
        ignored = _ignored(schema)
        if ignored is not None:
            raise BadInput(
                "invalid_schema",
                f"The schema uses {ignored!r}, which this engine cannot follow.",
                param="text.format",
            )
        if (
            is_call and isinstance(schema, dict) and request.generation == 1
        ):  # a later run goes on from whatever white space is there
            schema = {**schema, **_TRAINED_SPACES}
        # As text, which is not copied value by value on its way through vLLM.
        arguments["structured_outputs"] = StructuredOutputsParams(json=msgspec.json.encode(schema).decode())
    if extra:
        arguments["extra_args"] = extra
    if special_tags:
        arguments |= {"skip_special_tokens": False, "spaces_between_special_tokens": False}
    made = SamplingParams if schema is None else CheckedParams
    return made(output_kind=RequestOutputKind.DELTA, **arguments)


def _ignored(schema: Json) -> str | None:
    """Returns a keyword in the schema that vLLM's grammars would silently ignore; None if there is none. Other keywords
    that they do not support are refused by vLLM itself."""
    if isinstance(schema, list):
        return next((found for inner in schema if (found := _ignored(inner)) is not None), None)
    if not isinstance(schema, dict):
        return None
    for name, value in schema.items():
        if name in _IGNORED:
            return str(name)
        if name in _NO_SCHEMAS:
            continue
        found = _ignored(list(value.values()) if name in _OF_SCHEMAS and isinstance(value, dict) else value)
        if found is not None:
            return found
    return None


def prefill_params(transfer: dict[str, Json]) -> SamplingParams:
    """Returns the parameters of a run that only computes KV. It decodes one token, because vLLM allows no fewer."""
    extra = {"kv_transfer_params": transfer} if transfer else None
    return SamplingParams(
        temperature=0, max_tokens=1, detokenize=False, output_kind=RequestOutputKind.DELTA, extra_args=extra
    )


def scoring_params(top: int) -> SamplingParams:
    """Returns the parameters of a run that scores its prompt and the one token that it decodes, with the `top`
    likeliest tokens at each place."""
    return SamplingParams(temperature=0, max_tokens=1, logprobs=top, prompt_logprobs=top, detokenize=False)


def token_scores(prompt: Sequence[int], positions: Sequence[Any], behind: Any) -> list[TokenScore]:
    """Returns the scores of a prompt: `positions` has vLLM's log probabilities for each token, None for the first;
    `behind` those of the token that it decoded."""
    scores = []
    for index, found in enumerate([*positions[1:], behind]):
        ranked = sorted(found.items(), key=lambda pair: pair[1].rank or math.inf)
        own = found[prompt[index + 1]].logprob if index + 1 < len(prompt) else None
        scores.append(TokenScore(own, tuple((token, entry.logprob) for token, entry in ranked)))
    return scores


def public_logprobs(tokens: tuple[int, ...], positions: Any, top: int) -> tuple[Json, ...]:
    """Returns vLLM's log probabilities in the shape of OpenAI's `logprobs`, one for each token."""
    entries = []
    for token, found in zip(tokens, positions, strict=False):
        ranked = sorted(found.items(), key=lambda pair: pair[1].rank or math.inf)
        entries.append(
            {
                **_public(found[token]),
                "top_logprobs": [_public(entry) for _, entry in ranked[:top]],
            }
        )
    return tuple(entries)


def _public(entry: Any) -> dict[str, Json]:
    text = entry.decoded_token or ""
    return {"token": text, "logprob": min(0.0, entry.logprob), "bytes": list(text.encode())}
