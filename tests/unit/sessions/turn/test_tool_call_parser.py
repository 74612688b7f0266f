"""Tool calls in the model's own words: however the text is split, wherever a run is continued."""

from __future__ import annotations

import asyncio

import jsonschema_rs
import msgspec
import pytest

from sessions.machine import event_writer
from sessions.model.types import Json, Sampling, Tool
from sessions.schemas import InlineSchemaChecker
from sessions.turn.output_pipeline import Release
from sessions.turn.tool_call_parser import MisfitCall, ToolCallParser, constrained_output

WEATHER = Tool(
    name="weather", parameters={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
)
CLOCK = Tool(name="clock")
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln {\\"x\\"}"}}\n</tool_call>'
SECOND = '<tool_call>{"name":"clock","arguments":{}}</tool_call>'
Said = list[tuple[str, str]]


def laid(pieces: list[event_writer.Piece]) -> Said:
    """Pieces as they add up."""
    said: Said = []
    for piece in pieces:
        match piece:
            case event_writer.CallBegin():
                said += [("call", piece.name), ("arguments", "")]
            case event_writer.CallArguments():
                assert said[-1][0] == "arguments"
                said[-1] = ("arguments", said[-1][1] + piece.text)
            case event_writer.Text():
                if said and said[-1][0] == "text":
                    said[-1] = ("text", said[-1][1] + piece.text)
                else:
                    said.append(("text", piece.text))
            case event_writer.RefusalText():
                raise AssertionError("a refusal")
    return said


def run(text: str, width: int, *, tools: tuple[Tool, ...] = (WEATHER, CLOCK), bare: bool = False) -> Said:
    calls = ToolCallParser(tools, bare=bare)
    pieces: list[event_writer.Piece] = []
    for start in range(0, len(text), width):
        pieces += calls.accept(Release(text[start : start + width], b"", "")).pieces
    pieces += calls.finish("stop").pieces
    return laid(pieces)


@pytest.mark.parametrize("width", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no call at all", [("text", "no call at all")]),
        ("a <tool and <tool_cal", [("text", "a <tool and <tool_cal")]),
        (CALL, [("call", "weather"), ("arguments", '{"city": "Köln {\\"x\\"}"}')]),
        (
            f"I look. \n{CALL}\n{SECOND}\n",
            [
                ("text", "I look."),
                ("call", "weather"),
                ("arguments", '{"city": "Köln {\\"x\\"}"}'),
                ("call", "clock"),
                ("arguments", "{}"),
            ],
        ),
        (f"{SECOND} done", [("call", "clock"), ("arguments", "{}"), ("text", "done")]),
        (SECOND[: -len("</tool_call>")], [("call", "clock"), ("arguments", "{}")]),
        ('<tool_call>{"arguments": {}, "name": "clock"}</tool_call>', [("call", "clock"), ("arguments", "{}")]),
        ('<tool_call>{"name": "no", "arguments": {}}</tool_call>',
         [("call", "no"), ("arguments", "{}")]),
        ('<tool_call>{"name": "", "arguments": {}}</tool_call>',
         [("text", '<tool_call>{"name": "", "arguments": {}}</tool_call>')]),
        ('```json\n{\n  "name": "clock",\n  "arguments": {}\n}\n```\n', [("call", "clock"), ("arguments", "{}")]),
        ('{"name": "clock", "arguments": {}}\n{"name": "clock", "arguments": {"at": [1]}}',
         [("call", "clock"), ("arguments", "{}"), ("call", "clock"), ("arguments", '{"at": [1]}')]),
        ('```json\n{"name": "Ann", "age": 3}\n```', [("text", '```json\n{"name": "Ann", "age": 3}\n```')]),
        ('{"name": "no", "arguments": {}}', [("text", '{"name": "no", "arguments": {}}')]),
        ('{"name": "clock", "arguments": {"at"', [("text", '{"name": "clock", "arguments": {"at"')]),
        ('So: ```json\n{"name": "clock", "arguments": {}}```',
         [("text", 'So: ```json\n{"name": "clock", "arguments": {}}```')]),
        ("```python\nx = {}\n```", [("text", "```python\nx = {}\n```")]),
        ("<tool_call>nonsense", [("text", "<tool_call>nonsense")]),
        ("<tool_call>nonsense</tool_call>", [("text", "<tool_call>nonsense</tool_call>")]),
    ],
)  # fmt: skip
def test_what_is_said_does_not_depend_on_the_split(text: str, said: Said, width: int) -> None:
    assert run(text, width) == said


@pytest.mark.parametrize("width", [1, 5, 1000])
@pytest.mark.parametrize("name", ["weather", "no"])
@pytest.mark.parametrize(
    ("arguments", "handed"),
    [
        ('{"city": 1}', '{"city": 1}'),
        ("{}", "{}"),
        ('{"city": "x"', '{"city": "x"}'),
        ('{"city": {"x": [1', '{"city": {"x": [1}'),
        ('{"city": "x"}} x', '{"city": "x"}'),
        ('{"city": }', '{"city": }'),
        ('"{\\"city\\": 1}"', '{"city": 1}'),
        ("[1]", "[1]"),
        ("null", "null"),
    ],
)
def test_a_client_gets_its_calls_whatever_their_arguments(name: str, arguments: str, handed: str, width: int) -> None:
    text = f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'
    assert run(text + SECOND, width) == [("call", name), ("arguments", handed), ("call", "clock"), ("arguments", "{}")]
    unended = text[: -len("</tool_call>")]
    assert run(unended, width) == [("call", name), ("arguments", handed)]


@pytest.mark.parametrize("width", [1, 5, 1000])
@pytest.mark.parametrize("arguments", ['{"city": 1}', "{}", '{"city": "x"', '{"city": "x"}} x', '{"city": }', '"text"'])
@pytest.mark.parametrize("change", [{"strict": True}, {"server": True}])
def test_arguments_that_do_not_fit_what_is_checked_are_never_whole(
    arguments: str, width: int, change: dict[str, bool]
) -> None:
    checked = msgspec.structs.replace(WEATHER, **change)
    text = f'<tool_call>{{"name": "weather", "arguments": {arguments}}}</tool_call>'
    pieces: list[event_writer.Piece] = []

    def go_through() -> None:
        calls = ToolCallParser((checked,))
        for start in range(0, len(text), width):
            parsed = calls.accept(Release(text[start : start + width], b"", ""))
            for call in parsed.calls:  # what Attempts does before it passes the pieces on
                wrong = asyncio.run(InlineSchemaChecker().value_problem(call.tool.parameters or {}, call.arguments))
                if wrong is not None:
                    raise MisfitCall(call.tool, wrong)
            pieces.extend(parsed.pieces)
        calls.finish("stop")

    with pytest.raises(MisfitCall) as caught:
        go_through()
    assert caught.value.code == "tool_call_invalid" and caught.value.tool is checked
    assert not pieces, "another call may come in its place"


@pytest.mark.parametrize("width", [1, 5, 1000])
def test_a_call_that_is_checked_goes_on_once_it_is_whole(width: int) -> None:
    calls = ToolCallParser((msgspec.structs.replace(WEATHER, strict=True), CLOCK))
    passed: list[event_writer.Piece] = []
    text = f"I look. {CALL} {SECOND}"
    for start in range(0, len(text), width):
        parsed = calls.accept(Release(text[start : start + width], b"", ""))
        begun = any(isinstance(each, event_writer.CallBegin) and each.name == "weather" for each in parsed.pieces)
        assert begun == bool(parsed.calls)
        passed += parsed.pieces
    assert laid([*passed, *calls.finish("stop").pieces]) == run(text, 1000)


def test_references_to_a_tools_own_definitions_hold_in_the_schema_of_a_call() -> None:
    again: Json = {"$ref": "#/$defs/node"}
    node: Json = {"type": "object", "properties": {"next": again, "const": again, "$ref": {"const": {"$ref": "#/x"}}}}
    tree = Tool(name="tree", parameters={"$ref": "#/$defs/node", "$defs": {"node": node}})
    loop = Tool(name="loop", parameters={"type": "object", "properties": {"again": {"anyOf": [{"$ref": "#"}]}}})
    for tools, first, second in (
        ((tree,), "#/properties/arguments/$defs/node", None),
        ((tree, loop), "#/anyOf/0/properties/arguments/$defs/node", "#/anyOf/1/properties/arguments"),
    ):
        made = constrained_output(Sampling(tool_choice="required"), tools).format
        assert made is not None
        shapes = made["schema"].get("anyOf", [made["schema"]])
        arguments = shapes[0]["properties"]["arguments"]
        assert arguments["$ref"] == first
        inner = arguments["$defs"]["node"]["properties"]
        assert inner == {"next": {"$ref": first}, "const": {"$ref": first}, "$ref": {"const": {"$ref": "#/x"}}}
        if second is not None:
            assert shapes[1]["properties"]["arguments"]["properties"]["again"]["anyOf"][0]["$ref"] == second
        value: Json = {"name": "tree", "arguments": {"next": {"next": 3}}}
        validator = jsonschema_rs.validator_for(made["schema"])
        assert not validator.is_valid(value)
        value["arguments"] = {"next": {"next": {}}}
        assert validator.is_valid(value)
