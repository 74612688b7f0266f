from __future__ import annotations

from typing import Any

import msgspec
import pytest

from sessions.model.errors import BadInput
from sessions.model.json_schema import SchemaFault
from sessions.model.schema_bounds import SchemaSize
from sessions.model.types import TextOptions, Tool
from sessions.schemas import (
    KNOWN_MAX,
    InlineSchemaChecker,
    KnownSchemas,
    SchemaParams,
    check_schemas,
    encode_schema,
)

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
