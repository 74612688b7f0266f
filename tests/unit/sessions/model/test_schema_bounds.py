from __future__ import annotations

from typing import Any

import pytest

from sessions.model.schema_bounds import SchemaBounds, SchemaTooCostly, measure_schema


def doubled(levels: int, *, union: str = "allOf", reference: str = "$ref") -> dict[str, Any]:
    """2 ** levels schemas that hold at one place."""
    definitions: dict[str, Any] = {
        f"d{i}": {union: [{reference: f"#/$defs/d{i + 1}"}, {reference: f"#/$defs/d{i + 1}"}]} for i in range(levels)
    }
    definitions[f"d{levels}"] = {"type": "object", "properties": {"a": {"type": "integer"}}}
    return {"$defs": definitions, "$ref": "#/$defs/d0"}


def recursive(node: dict[str, Any]) -> dict[str, Any]:
    return {"$defs": {"n": node}, "$ref": "#/$defs/n"}


N = {"$ref": "#/$defs/n"}


@pytest.mark.parametrize(
    ("schema", "reason", "pointer"),
    [
        (doubled(16), "1000 schemas hold at one place", "/$defs/"),
        (doubled(16, union="anyOf"), "combine in more than 256 ways", "/$defs/"),
        (doubled(16, reference="$dynamicRef"), "1000 schemas hold at one place", "/$defs/"),
        (doubled(16, reference="$recursiveRef"), "1000 schemas hold at one place", "/$defs/"),
        ({"$ref": "#"}, "refers to itself without consuming", ""),
        ({"anyOf": [{"$ref": "#"}, {"type": "integer"}]}, "refers to itself without consuming", ""),
        (
            {"$dynamicAnchor": "n", "not": {"$dynamicRef": "#n"}},
            "refers to itself without consuming",
            "",
        ),
        (recursive({"allOf": [{"properties": {"p": N}}, {"properties": {"p": N}}]}), "expands to more", "/$defs/n"),
        (recursive({"items": N, "allOf": [{"contains": N}]}), "expands to more than 10000", "/$defs/n"),
        (
            {"allOf": [{"anyOf": [{"required": [f"{i}{j}"]} for j in range(4)]} for i in range(8)]},
            "combine in more than 256 ways",
            "",
        ),
        ({"items": {"minItems": 10**8}}, "minItems may be 4000 at most", "/items/minItems"),
        ({"maxLength": 1e9}, "maxLength may be 100000 at most", "/maxLength"),
        ({"maxItems": 4_000, "items": {"maxItems": 4_000}}, "make more than 1000000", ""),
        (
            {"$defs": {"s": {"maxLength": 50_000}}, "maxItems": 4_000, "items": {"$ref": "#/$defs/s"}},
            "make more than 1000000",
            "",
        ),
        ({"properties": {"a/b": {"pattern": "a{10000}"}}}, "repetitions written out", "/properties/a~1b/pattern"),
        ({"patternProperties": {"(a{200}){200}": {}}}, "repetitions written out", "/patternProperties/(a{200}){200}"),
        ({"pattern": "a" * 1_001}, "1000 characters at most", "/pattern"),
        ({"enum": list(range(2_001))}, "more than 2000 values", "/enum"),
        ({"anyOf": [{}] * 257}, "anyOf has more than 256 members", "/anyOf"),
        ({"properties": {f"p{i}": {} for i in range(501)}}, "more than 500 names", "/properties"),
        ({"const": "a" * 10_001}, "may have 10000 characters", "/const"),
        ({"enum": [f"{n}{'a' * 9_000}" for n in range(20)]}, "120000 characters", "/enum/"),
        ({"items": [{"maxItems": 3_000}] * 4}, "counts of items together make more than 10000", "/items/"),
        ({"allOf": [{"pattern": "a"}] * 5}, "4 patterns hold at one place", "/allOf/"),
        ({"allOf": [{"multipleOf": 97}, {"multipleOf": 0.91}]}, "multipleOf may be 5000", "/allOf/1"),
        ({"items": {"multipleOf": 1e300}}, "multipleOf may be 5000", "/items"),
        ({"x": [0] * 5_001}, "more than 5000 values", "/x/"),
        ({"$ref": "https://example.org/s.json"}, "other documents", "/$ref"),
        ({"$id": "https://example.org/a/", "items": {"$ref": "b"}}, "other documents", "/items/$ref"),
    ],
)
def test_what_passes_a_bound_is_refused_with_reason_and_place(schema: Any, reason: str, pointer: str) -> None:
    with pytest.raises(SchemaTooCostly) as caught:
        measure_schema(schema)
    assert reason in str(caught.value)
    assert caught.value.pointer.startswith(pointer) if pointer else caught.value.pointer == ""


def test_depth_counts_objects_and_lists() -> None:
    def nested(levels: int) -> dict[str, Any]:
        return {"not": nested(levels - 1)} if levels else {}

    assert measure_schema(nested(59)).values == 60
    with pytest.raises(SchemaTooCostly, match="deeper than 60 levels"):
        measure_schema(nested(60))


@pytest.mark.parametrize(
    "schema",
    [
        {},
        recursive({"type": "object", "properties": {"left": N, "right": N, "rest": {"type": "array", "items": N}}}),
        recursive({"anyOf": [{"properties": {"op": {"const": c}, "a": N, "b": N}} for c in "abcdefgh"]}),
        {  # a base and what derives from it
            "$defs": {"b": {"properties": {"id": {}}}, "n": {"allOf": [{"$ref": "#/$defs/b"}, {"items": N}]}},
            "$ref": "#/$defs/n",
        },
        {"$dynamicAnchor": "n", "properties": {"c": {"items": {"$dynamicRef": "#n"}}}},
        {"$recursiveAnchor": True, "properties": {"c": {"items": {"$recursiveRef": "#"}}}},
        {"$id": "https://example.org/a", "$defs": {"b": {"$id": "b", "type": "null"}}, "items": {"$ref": "b"}},
        {"$defs": {"x": {"$anchor": "there"}}, "items": {"$ref": "#there"}},
        {"properties": {"$ref": {"type": "string"}, "minItems": {"type": "integer"}, "enum": {"enum": ["a"]}}},
        {"const": {"minItems": 10**9, "$ref": "https://example.org", "anyOf": [{}]}},
        {"type": "array", "maxItems": 1_000, "items": {"type": "string", "maxLength": 1_000}},
        {"enum": [f"choice {i}" for i in range(1_000)], "multipleOf": 0.01},
        doubled(5),
    ],
)  # fmt: skip
def test_what_people_write_is_let_through(schema: Any) -> None:
    measure_schema(schema)


def test_the_bounds_bound_the_measuring_too() -> None:
    """Wide and deep at once: the work ends at the first bound, however large the whole would be."""
    nodes = range(40)
    definitions = {f"d{i}": {"properties": {f"p{j}": {"$ref": f"#/$defs/d{i * j % 40}"} for j in nodes}} for i in nodes}
    schema = {"$defs": definitions, "$ref": "#/$defs/d1"}
    size = measure_schema(schema)
    assert size.expanded <= 10_000 and size.values <= 5_000
    with pytest.raises(SchemaTooCostly, match="expands to more than 100"):
        measure_schema(schema, SchemaBounds(expanded=100))
