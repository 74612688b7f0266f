"""Markers in every text of a request, and which fields of a door's description have none.

A sample request is plain data with `next(marks)` wherever a text of the caller's stands. What is described (a JSON
schema, a protobuf message) and what is marked are both sets of paths: `messages[].content`, `metadata.*` for whatever
stands inside free data.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from inference.simulated import SimulatedEngine, SimulatedOptions, decode
from sessions.model.generation import Chunk, EngineInfo, Finish, GenerationRequest
from sessions.model.types import Principal
from sessions.model.verdicts import PASS, Verdict
from tests.support.input_filter_set import InputFilterSet

MARKER: Final = re.compile(r"zq\d{4}qz")
CALLS: Final = "call-the-tool"  # in a message: its answer calls the function that stands first among the tools
_FREE: Final = ("google.protobuf.Struct", "google.protobuf.Value")


def markers() -> Iterator[str]:
    return (f"zq{number:04d}qz" for number in itertools.count())


class RecordingFilters(InputFilterSet):
    """Lets everything through, and keeps what it was shown."""

    def __init__(self) -> None:
        self.judged: list[str] = []

    async def check(self, principal: Principal, text: str) -> Verdict:
        self.judged.append(text)
        return PASS


class RecordingEngine(SimulatedEngine):
    """Keeps each prompt's text; and calls the first function where a message says so."""

    def __init__(self, options: SimulatedOptions, prompts: list[str]) -> None:
        super().__init__(options)
        self._prompts = prompts

    @property
    def info(self) -> EngineInfo:
        return msgspec.structs.replace(super().info, tool_format="hermes")

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk | Finish]:
        prompt = decode(request.prompt)
        self._prompts.append(prompt)
        name = re.search(r'"name":"(zq\d{4}qz)"', prompt)
        if CALLS in prompt and name is not None and "call_" not in prompt:
            text = f'<tool_call>{{"name": "{name[1]}", "arguments": {{}}}}</tool_call>'
            yield Chunk(tuple(await self.tokenizer.text(text)), text)
            yield Finish("stop", len(request.prompt), 0)
            return
        async for piece in super().generate(request):
            yield piece


def described(schema: Mapping[str, Any], definitions: Mapping[str, Any], at: str = "") -> Iterator[str]:
    """The texts that a JSON schema describes, by their paths; not those of which it lists the values."""
    if "$ref" in schema:
        yield from described(definitions[schema["$ref"].rpartition("/")[2]], definitions, at)
    for each in (*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())):
        yield from described(each, definitions, at)
    match schema.get("type"):
        case "string" if "enum" not in schema and "const" not in schema:
            yield at
        case "array":
            yield from described(schema.get("items", {}), definitions, f"{at}[]")
        case "object":
            for name, each in schema.get("properties", {}).items():
                yield from described(each, definitions, f"{at}.{name}" if at else name)
            if schema.get("additionalProperties") or "properties" not in schema:
                yield f"{at}.*"
        case None if not {"$ref", "anyOf", "oneOf", "allOf", "enum", "const"} & set(schema):
            yield f"{at}.*"


def described_by(message: Descriptor, at: str = "") -> Iterator[str]:
    """The same of a protobuf message."""
    for field in message.fields:
        path = f"{at}.{field.name}" if at else field.name
        inner = field.message_type
        if inner is not None and (inner.full_name in _FREE or inner.GetOptions().map_entry):
            yield f"{path}.*"
            continue
        path += "[]" if field.is_repeated else ""
        if inner is not None:
            yield from described_by(inner, path)
        elif field.type == FieldDescriptor.TYPE_STRING:
            yield path


def marked(value: Any, at: str = "") -> Iterator[str]:
    """The paths of a sample's markers."""
    match value:
        case str() if MARKER.search(value):
            yield at
        case dict():
            for name, each in value.items():
                if MARKER.search(name):
                    yield f"{at}.{name}"
                yield from marked(each, f"{at}.{name}" if at else name)
        case list() | tuple():
            for each in value:
                yield from marked(each, f"{at}[]")


def unmarked(described: Iterator[str], samples: Sequence[Any]) -> list[str]:
    """The paths that no sample marks."""
    there = {path for sample in samples for path in marked(sample)}
    return sorted(
        path
        for path in set(described)
        if path not in there and not (path.endswith(".*") and any(each.startswith(path[:-2]) for each in there))
    )
