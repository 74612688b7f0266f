"""Reads the JSON schema out of `text.format`, for every engine that can constrain its output."""

from __future__ import annotations

from sessions.model.errors import BadInput
from sessions.model.types import Json, Sampling


def output_schema(sampling: Sampling) -> Json | None:
    """The JSON schema that `text.format` requests, None for free text."""
    requested = sampling.text.format if sampling.text is not None else None
    match requested:
        case None | {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return {"type": "object"}
        case {"type": "json_schema", "schema": dict() as schema}:
            return schema
        case {"type": "json_schema", "json_schema": {"schema": dict() as schema}}:
            return schema
    raise BadInput(
        "invalid_format", "text.format must be of type text, json_object or json_schema.", param="text.format"
    )
