"""What engines share in reading a request's sampling parameters: which are honoured, schemas, and biases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from sessions.model.errors import BadInput
from sessions.model.generation import GenerationRequest
from sessions.model.json_schema import schema_of_format
from sessions.model.types import Json

DIRECT: Final = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repeat_penalty",
)
"""Sampling parameters that engines accept unchanged, all but one by the same name."""
HONOURED: Final = frozenset(
    {
        *DIRECT,
        *("seed", "logit_bias", "logprobs", "top_logprobs", "text"),
        *("ignore_eos", "min_tokens", "stop_token_ids"),
    }
)


def direct_parameters(request: GenerationRequest, *, repeat_penalty: str = "repeat_penalty") -> dict[str, Any]:
    """Returns the parameters of `DIRECT` that a request sets. `repeat_penalty`: the engine's name of that parameter."""
    values = {name: getattr(request.sampling, name) for name in DIRECT}
    values[repeat_penalty] = values.pop("repeat_penalty")
    return {name: value for name, value in values.items() if value is not None}


def output_schema(request: GenerationRequest) -> Json | None:
    """Returns the JSON schema that `text.format` requests, None for free text. Raises BadInput.

    A grammar begins empty at each run, whatever the prompt is. If the request has `emitted` tokens, the engine must
    therefore advance the grammar by these, or raise `unfit_continuation`."""
    text = request.sampling.text
    schema: Json
    match text.format if text is not None else None:
        case None | {"type": "text"}:
            return None
        case {"type": "json_object"}:
            schema = {"type": "object"}
        case given if (inner := schema_of_format(given)) is not None:
            schema = inner
        case _:
            raise BadInput(
                "invalid_format", "text.format must be of type text, json_object or json_schema.", param="text.format"
            )
    return schema


def unfit_continuation() -> BadInput:
    """Makes the error for a fixed-format answer that cannot be continued: its released text does not fit the
    grammar."""
    return BadInput("recovery_incompatible", "This answer in a fixed format cannot be continued from where it is.")


def token_biases(biases: dict[str, float], vocabulary_size: int) -> Iterator[tuple[int, float]]:
    """Yields (token id, bias) for each entry of `logit_bias`. Raises BadInput for a name that is no token id."""
    for name, bias in biases.items():
        token = int(name) if name.isascii() and name.isdigit() else vocabulary_size
        if token >= vocabulary_size:
            raise BadInput("invalid_logit_bias", f"{name!r} is no token id of this model.", param="logit_bias")
        yield token, bias
