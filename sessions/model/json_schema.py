"""JSON schemas of tools and answers: whether one may be used, and whether a value fits it.

Nothing is fetched: a reference to another document makes a schema unusable. Patterns run on an engine that takes linear
time. Source: JSON Schema 2020-12 (and older drafts by `$schema`). Only `schema_bounds` bounds the time of a check; a
server must not block others with it, and uses `ports.SchemaChecker`.
"""

from __future__ import annotations

from typing import Final

import jsonschema_rs
import msgspec

from sessions.model.schema_bounds import SchemaSize, SchemaTooCostly, measure_schema
from sessions.model.types import Json

PROBLEM_CHARS_MAX: Final = 500
SCHEMA_BYTES_MAX: Final = 256 << 10
_POINTER_CHARS_MAX: Final = 200


class SchemaFault(msgspec.Struct, frozen=True, array_like=True):
    """The reason why a schema is refused, and the place as a JSON pointer, "" for the whole schema."""

    message: str
    pointer: str = ""
    costly: bool = False  # it may be valid, but is too costly to check or generate by

    def __str__(self) -> str:
        return f"{self.message} (at '{self.pointer}')." if self.pointer else f"{self.message}."


def _fetch(uri: str) -> Json:
    raise ValueError(f"{uri} is another document")


def compile_schema(schema: dict[str, Json]) -> jsonschema_rs.Validator:
    """Returns a validator for a schema. Raises ValueError with the reason if the schema is not usable."""
    try:
        return jsonschema_rs.validator_for(schema, retriever=_fetch, pattern_options=jsonschema_rs.RegexOptions())
    except (ValueError, jsonschema_rs.ReferencingError) as exc:
        raise ValueError(str(exc).partition("\n")[0][:PROBLEM_CHARS_MAX]) from exc


def judge_schema(schema: dict[str, Json]) -> tuple[SchemaSize, jsonschema_rs.Validator] | SchemaFault:
    """Returns a schema's size with its validator, or the fault for which it is refused."""
    try:
        return measure_schema(schema), compile_schema(schema)
    except SchemaTooCostly as exc:
        pointer = exc.pointer
        if len(pointer) > _POINTER_CHARS_MAX:
            pointer = f"{pointer[:_POINTER_CHARS_MAX]}…"
        return SchemaFault(str(exc), pointer, costly=True)
    except ValueError as exc:
        return SchemaFault(str(exc).rstrip("."))


def value_problem(validator: jsonschema_rs.Validator, value: Json) -> str | None:
    """Returns in words what is wrong with a value; None if it fits."""
    for error in validator.iter_errors(value):
        where = ".".join(str(part) for part in error.instance_path)
        return f"{where or 'arguments'}: {error.message}"[:PROBLEM_CHARS_MAX]
    return None


def schema_of_format(format: dict[str, Json] | None) -> Json | None:
    """Returns the schema in `text.format`, from either of the two places where OpenAI has it; None if there is none."""
    match format:
        case {"type": "json_schema", "schema": dict() as schema}:
            return schema
        case {"type": "json_schema", "json_schema": {"schema": dict() as schema}}:
            return schema
    return None
