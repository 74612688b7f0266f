"""Schemas of requests: bounded, judged, checked."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from sessions.model.errors import BadInput
from sessions.model.json_schema import SchemaFault, compile_schema, judge_schema, schema_of_format
from sessions.model.pattern_size import pattern_size
from sessions.model.schema_bounds import SchemaBounds, SchemaSize, SchemaTooCostly, measure_schema
from sessions.model.types import TextOptions, Tool
from sessions.schemas import KNOWN_MAX, InlineSchemaChecker, KnownSchemas, SchemaParams, check_schemas, encode_schema


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


@pytest.mark.parametrize(
    ("pattern", "size"),
    [
        ("", 1),
        ("abc", 3),
        ("^abc$", 5),
        ("a{10}", 10),
        ("a{2,5}", 5),
        ("a{7,}", 8),
        ("(ab{3}){10}", 40),
        ("((a{10}){10}){10}", 1_000),
        ("a{10}{10}", 100),
        ("(a|b)+", 2),
        (r"\{10}", 4),
        ("a{x}", 4),
        ("[a-z{9}]", 4),
        ("[]{9}]{2}", 8),
        (r"\d{3}", 30),
        (r"\p{L}{2}", 20),
        ("(a{100}", 100),
        ("a)b{3}", 5),
    ],
)
def test_size_is_that_of_the_pattern_written_out(pattern: str, size: int) -> None:
    assert pattern_size(pattern) == size


def test_size_does_not_grow_without_end() -> None:
    assert pattern_size("(" * 300 + "a" + "){999999999}" * 300) == 10**12
    assert pattern_size("\\") == 1 and pattern_size("[") >= 1 and pattern_size("\\p{") >= 1


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
        ({"$dynamicAnchor": "n", "not": {"$dynamicRef": "#n"}}, "refers to itself without consuming", ""),
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


GOOD: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}


def tool(parameters: dict[str, Any] | None, name: str = "f") -> Tool:
    return Tool(name=name, parameters=parameters)


async def test_a_refusal_names_the_field() -> None:
    checker = InlineSchemaChecker()
    await check_schemas(checker, (tool(None), tool(GOOD)), TextOptions({"type": "json_schema", "schema": GOOD}))
    with pytest.raises(BadInput) as caught:
        await check_schemas(checker, (tool(GOOD), tool({"type": "x"})), None)
    assert caught.value.code == "invalid_schema" and caught.value.param == "tools[1].parameters"
    params = SchemaParams(format="response_format")
    with pytest.raises(BadInput) as caught:
        await check_schemas(checker, (), TextOptions({"type": "json_schema", "schema": {"type": "x"}}), params)
    assert caught.value.param == "response_format"


async def test_a_function_that_is_only_shown_may_have_a_schema_that_no_grammar_takes() -> None:
    """Claude Code offers a function whose `maxLength` is half a million."""
    checker, costly = InlineSchemaChecker(), tool({"type": "object", "properties": {"a": {"maxLength": 524_288}}})
    await check_schemas(checker, (costly,), None)
    strict = msgspec.structs.replace(costly, strict=True)
    for tools, forced in (((strict,), ()), ((costly,), (costly,))):
        with pytest.raises(BadInput, match="maxLength may be 100000 at most"):
            await check_schemas(checker, tools, None, forced=forced)


async def test_all_schemas_of_a_request_count_together() -> None:
    schema = {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(450)}}
    many = tuple(tool({**schema, "description": str(i)}, f"f{i}") for i in range(24))
    with pytest.raises(BadInput, match="All schemas of the request hold more than 10000 values"):
        await check_schemas(InlineSchemaChecker(), many, None)


async def test_values_are_checked() -> None:
    checker = InlineSchemaChecker()
    assert await checker.value_problem(GOOD, '{"a": 1}') is None
    assert "a: " in str(await checker.value_problem(GOOD, '{"a": "x"}'))
    assert "cannot be used" in str(await checker.value_problem({"minItems": 10**8}, "{}"))


def test_what_is_no_json_or_too_long_is_not_encoded() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    assert isinstance(encode_schema(deep), SchemaFault)
    assert isinstance(encode_schema("a" * 300_000), SchemaFault)
    assert isinstance(encode_schema(GOOD), bytes)
    while deep:  # taken apart one by one: its own destructor would recurse
        deep = deep.pop()


def test_the_latest_judgements_are_kept() -> None:
    known = KnownSchemas()
    for number in range(KNOWN_MAX + 1):
        known.put(number.to_bytes(4, "big"), SchemaSize(number, 0, 0))
        known.get(b"\0\0\0\0")
    assert known.get(b"\0\0\0\1") is None and known.get(b"\0\0\0\0") == SchemaSize(0, 0, 0)
