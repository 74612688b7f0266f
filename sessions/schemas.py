"""Checks the JSON schemas of a request: at the door before anything is paid, and again before an engine gets them.

The second time is for what was stored before there were bounds, and for doors that another version keeps. Schemas are
few and come again with every turn, so their judgements are remembered by digest: a known one costs its hash.

`InlineSchemaChecker` judges where it is called, within the bounds alone: for tests and the simulator. Servers have
`inference.schemas`, which judges in processes of its own, with a deadline.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from sessions.model.errors import BadInput
from sessions.model.json_schema import (
    SCHEMA_BYTES_MAX,
    SchemaFault,
    judge_schema,
    schema_of_format,
    value_problem,
)
from sessions.model.schema_bounds import BOUNDS, SchemaSize
from sessions.model.types import Json, TextOptions, Tool
from sessions.ports import SchemaChecker

KNOWN_MAX: Final = 4096
_REQUEST_SCHEMAS: Final = 2  # all schemas of a request may count as much as so many of the largest


class SchemaParams(NamedTuple):
    """What a request calls its schemas: `tools` with the index in braces."""

    tools: str = "tools[{}].parameters"
    format: str = "text.format.schema"


SCHEMA_PARAMS: Final = SchemaParams()


def encode_schema(schema: Json) -> bytes | SchemaFault:
    """A schema as bytes, the same for the same schema; or why it cannot be used."""
    try:
        encoded = msgspec.json.encode(schema)
    except (RecursionError, msgspec.EncodeError, UnicodeEncodeError, OverflowError, TypeError):
        return SchemaFault("It cannot be written as JSON")
    if len(encoded) > SCHEMA_BYTES_MAX:
        return SchemaFault(f"It takes more than {SCHEMA_BYTES_MAX} bytes")
    return encoded


def schema_digest(encoded: bytes) -> bytes:
    return hashlib.blake2b(encoded, digest_size=16).digest()


class KnownSchemas:
    """Judgements by digest, the latest used `KNOWN_MAX` of them."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, SchemaSize | SchemaFault] = OrderedDict()

    def get(self, digest: bytes) -> SchemaSize | SchemaFault | None:
        known = self._known.get(digest)
        if known is not None:
            self._known.move_to_end(digest)
        return known

    def put(self, digest: bytes, judged: SchemaSize | SchemaFault) -> None:
        self._known[digest] = judged
        while len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)


class InlineSchemaChecker:
    """Judges in the caller's thread, within the bounds and without a deadline."""

    def __init__(self) -> None:
        self._known = KnownSchemas()

    async def judge(self, schema: dict[str, Json]) -> SchemaSize | SchemaFault:
        encoded = encode_schema(schema)
        if isinstance(encoded, SchemaFault):
            return encoded
        digest = schema_digest(encoded)
        known = self._known.get(digest)
        if known is None:
            judged = judge_schema(schema)
            known = judged if isinstance(judged, SchemaFault) else judged[0]
            self._known.put(digest, known)
        return known

    async def value_problem(self, schema: dict[str, Json], value: str) -> str | None:
        judged = judge_schema(schema)
        if isinstance(judged, SchemaFault):
            return f"its schema cannot be used: {judged}"
        return value_problem(judged[1], json.loads(value))


async def check_schemas(
    checker: SchemaChecker,
    tools: Sequence[Tool],
    text: TextOptions | None,
    params: SchemaParams = SCHEMA_PARAMS,
) -> None:
    """Raises BadInput `invalid_schema` with reason and place for the first schema that cannot be used, and where all
    together are too large for one grammar; Overloaded where too many wait to be judged."""
    values = expanded = patterns = 0
    for schema, param in _schemas(tools, text, params):
        judged = await checker.judge(schema)
        if isinstance(judged, SchemaFault):
            raise refused(param, judged)
        values, expanded = values + judged.values, expanded + judged.expanded
        patterns += judged.patterns
        for counted, most, what in (
            (values, BOUNDS.values, "hold more than {} values"),
            (expanded, BOUNDS.expanded, "expand to more than {} schemas"),
            (patterns, BOUNDS.pattern_total, "have patterns of more than {} characters, repetitions written out"),
        ):
            if counted > _REQUEST_SCHEMAS * most:
                raise refused(param, SchemaFault(f"All schemas of the request {what.format(_REQUEST_SCHEMAS * most)}"))


def refused(param: str, fault: SchemaFault) -> BadInput:
    return BadInput("invalid_schema", f"Invalid schema for '{param}': {fault}", param=param)


def _schemas(
    tools: Sequence[Tool], text: TextOptions | None, params: SchemaParams
) -> Iterator[tuple[dict[str, Json], str]]:
    for index, tool in enumerate(tools):
        if tool.parameters is not None:
            yield tool.parameters, params.tools.format(index)
    schema = schema_of_format(text.format) if text is not None else None
    if schema is not None:
        yield schema, params.format
