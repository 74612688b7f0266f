"""Probes whether llama.cpp understands a JSON schema, because it does not report that itself.

A schema that its grammar engine cannot compile (an unknown type, a pattern that is no regular expression, `not`) is
logged there and then ignored: the answer would come unconstrained. So each new schema is tried for one token, with all
weight on a letter that no JSON begins with. If that letter comes, nothing constrains the output.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Final

import msgspec

from sessions.model.errors import BadInput
from sessions.model.generation import Chunk, Finish
from sessions.model.types import Json

IMPOSSIBLE: Final = "Z"  # neither a value, nor a blank, nor the beginning of true, false or null
_KNOWN_MAX: Final = 1024
_ALL_WEIGHT: Final = 100.0


class SchemaProbe:
    """Tests whether llama.cpp understands a schema by a trial request, and remembers the schemas that it does.
    `letter`: the token id of the letter that no JSON begins with (`IMPOSSIBLE`)."""

    def __init__(self, letter: int) -> None:
        self._letter = letter
        self._good: OrderedDict[bytes, None] = OrderedDict()

    def probe_parameters(self, parameters: dict[str, Json]) -> dict[str, Json] | None:
        """Returns the parameters of a trial request, None where the schema needs none."""
        schema = parameters.get("json_schema")
        if schema is None or _name(schema) in self._good:
            return None
        return {
            "json_schema": schema,
            "n_predict": 1,
            "temperature": 0,
            "logit_bias": [[self._letter, _ALL_WEIGHT]],
        }

    def judge(self, schema: Json, first: Chunk | Finish) -> None:
        """Raises BadInput when the trial's first token shows that the schema was ignored."""
        if isinstance(first, Chunk) and first.text.startswith(IMPOSSIBLE):
            raise BadInput(
                "invalid_schema",
                "The format's JSON schema is invalid, or uses something that this engine does not support.",
                param="text.format",
            )
        self._good[_name(schema)] = None
        while len(self._good) > _KNOWN_MAX:
            self._good.popitem(last=False)


def _name(schema: Json) -> bytes:
    return hashlib.blake2b(msgspec.json.encode(schema, order="sorted"), digest_size=16).digest()
