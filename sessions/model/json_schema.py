"""JSON schemas of tools: whether one is one, and whether a value fits it.

Nothing is fetched: a reference to another document makes a schema unusable. Patterns run on an engine that takes
linear time. Source: JSON Schema 2020-12 (and older drafts by `$schema`).
"""

from __future__ import annotations

import jsonschema_rs

from sessions.model.types import Json

PROBLEM_CHARS_MAX = 500


def _fetch(uri: str) -> Json:
    raise ValueError(f"{uri} is another document")


def compile_schema(schema: dict[str, Json]) -> jsonschema_rs.Validator:
    """A validator. Raises ValueError with the reason when `schema` is not a usable JSON schema."""
    try:
        return jsonschema_rs.validator_for(schema, retriever=_fetch, pattern_options=jsonschema_rs.RegexOptions())
    except (ValueError, jsonschema_rs.ReferencingError) as exc:
        raise ValueError(str(exc).partition("\n")[0][:PROBLEM_CHARS_MAX]) from exc


def schema_problem(validator: jsonschema_rs.Validator, value: Json) -> str | None:
    """What is wrong with a value, for people; None when it fits."""
    for error in validator.iter_errors(value):
        where = ".".join(str(part) for part in error.instance_path)
        return f"{where or 'arguments'}: {error.message}"[:PROBLEM_CHARS_MAX]
    return None
