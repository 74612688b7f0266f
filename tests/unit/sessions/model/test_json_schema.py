from __future__ import annotations

from typing import Any

import pytest

from sessions.model.json_schema import SchemaFault, compile_schema, judge_schema, schema_of_format, value_problem


def test_a_schema_is_judged_and_checks_values() -> None:
    judged = judge_schema({"type": "object", "properties": {"a": {"type": "integer"}}})
    assert not isinstance(judged, SchemaFault)
    assert value_problem(judged[1], {"a": 1}) is None
    problem = value_problem(judged[1], {"a": "x"})
    assert problem is not None and problem.startswith("a: ")


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "bogus"}, "bogus"),
        ({"items": {"minItems": 10**8}}, "minItems may be 4000 at most (at '/items/minItems')."),
        ({"$ref": "https://example.org/x"}, "References to other documents are not followed (at '/$ref')."),
        ({"pattern": "("}, ""),
    ],
)
def test_a_refusal_says_why_and_where(schema: dict[str, Any], text: str) -> None:
    judged = judge_schema(schema)
    assert isinstance(judged, SchemaFault) and text in str(judged)


def test_a_long_place_is_cut() -> None:
    schema: dict[str, Any] = {"minItems": 10**9}
    for _ in range(20):
        schema = {"properties": {"a" * 100: schema}}
    judged = judge_schema(schema)
    assert isinstance(judged, SchemaFault) and len(str(judged)) < 300


def test_other_documents_are_not_fetched() -> None:
    with pytest.raises(ValueError, match="example"):
        compile_schema({"$ref": "https://example.org/x"})


@pytest.mark.parametrize(
    ("format", "schema"),
    [
        (None, None),
        ({"type": "text"}, None),
        ({"type": "json_object"}, None),
        ({"type": "json_schema"}, None),
        ({"type": "json_schema", "schema": {"a": 1}}, {"a": 1}),
        ({"type": "json_schema", "json_schema": {"schema": {"b": 1}}}, {"b": 1}),
    ],
)
def test_both_places_of_a_format_are_read(format: Any, schema: Any) -> None:
    assert schema_of_format(format) == schema
