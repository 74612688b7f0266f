"""Filters on the attributes of files, as in OpenAI's API: comparisons, combined by `and` and `or`.

They are checked once, at the edge; an index makes them a part of its query. A file without the attribute matches only
`ne` and `nin`. Numbers are compared with numbers, texts with texts; a number and a text match only by `ne` and `nin`.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, cast

import msgspec

from sessions.model.errors import BadInput

Value = str | float | bool
Attributes = Mapping[str, Value]

ATTRIBUTES_MAX: Final = 16
KEY_CHARACTERS: Final = 64
VALUE_CHARACTERS: Final = 512
COMPARISONS_MAX: Final = 64
DEPTH_MAX: Final = 8
VALUES_MAX: Final = 100


class Comparison(msgspec.Struct, frozen=True, tag_field="type", tag="comparison", kw_only=True):
    op: Literal["eq", "ne", "gt", "gte", "lt", "lte", "in", "nin"]
    key: str
    value: Value | tuple[Value, ...]


class Compound(msgspec.Struct, frozen=True, tag_field="type", tag="compound", kw_only=True):
    op: Literal["and", "or"]
    filters: tuple[AttributeFilter, ...]


AttributeFilter = Comparison | Compound


def parse_filter(given: object, *, param: str = "filters") -> AttributeFilter:
    """Parses the filter of a request. Raises BadInput, which says what is wrong and names `param`."""
    parsed = _parsed(given, param, 0)
    if sum(1 for _ in comparisons(parsed)) > COMPARISONS_MAX:
        raise _bad(param, f"it has at most {COMPARISONS_MAX} comparisons")
    return parsed


def comparisons(given: AttributeFilter) -> Iterator[Comparison]:
    if isinstance(given, Comparison):
        yield given
    else:
        for each in given.filters:
            yield from comparisons(each)


def check_attributes(given: Attributes, *, param: str = "attributes") -> dict[str, Value]:
    """Returns a copy of a file's attributes. Raises BadInput for too many, for too long ones, and for NUL."""
    if len(given) > ATTRIBUTES_MAX:
        raise _bad(param, f"a file has at most {ATTRIBUTES_MAX}")
    for key, value in given.items():
        if not 0 < len(key) <= KEY_CHARACTERS or (isinstance(value, str) and len(value) > VALUE_CHARACTERS):
            raise _bad(param, f"names have at most {KEY_CHARACTERS} characters, texts {VALUE_CHARACTERS}")
        if "\0" in key or (isinstance(value, str) and "\0" in value):
            raise _bad(param, "it holds a NUL character")  # which PostgreSQL cannot store
    return dict(given)


def _parsed(given: object, param: str, depth: int) -> AttributeFilter:
    if not isinstance(given, dict) or depth > DEPTH_MAX:
        raise _bad(param, f"it is an object, nested at most {DEPTH_MAX} deep")
    op = given.get("type")
    if op in ("and", "or"):
        inner = given.get("filters")
        if set(given) != {"type", "filters"} or not isinstance(inner, list) or not inner:
            raise _bad(param, f"'{op}' has `filters`, a list that is not empty")
        return Compound(op=op, filters=tuple(_parsed(each, f"{param}.filters", depth + 1) for each in inner))
    if op not in ("eq", "ne", "gt", "gte", "lt", "lte", "in", "nin"):
        raise _bad(param, "its type is one of eq, ne, gt, gte, lt, lte, in, nin, and, or")
    key, value = given.get("key"), cast(Any, given.get("value"))
    if set(given) != {"type", "key", "value"} or not isinstance(key, str) or not 0 < len(key) <= KEY_CHARACTERS:
        raise _bad(param, "a comparison has `type`, `key` and `value`")
    values = value if isinstance(value, list) and op in ("in", "nin") else [value]
    if op in ("in", "nin") and not isinstance(value, list):
        raise _bad(param, f"'{op}' has a list as its `value`")
    if not 0 < len(values) <= VALUES_MAX or not all(_is_value(each) for each in values):
        raise _bad(param, f"`value` is a text, a number or a boolean, or for in and nin a list of up to {VALUES_MAX}")
    if op in ("gt", "gte", "lt", "lte") and isinstance(value, bool):
        raise _bad(param, f"'{op}' compares numbers or texts")
    if any("\0" in each for each in (key, *values) if isinstance(each, str)):
        raise _bad(param, "it holds a NUL character")  # which PostgreSQL does not take
    return Comparison(op=op, key=key, value=tuple(values) if op in ("in", "nin") else values[0])


def _is_value(value: object) -> bool:
    return isinstance(value, bool | int | float) or (isinstance(value, str) and len(value) <= VALUE_CHARACTERS)


def _bad(param: str, what: str) -> BadInput:
    return BadInput("invalid_request", f"Invalid value for '{param}': {what}.", param=param)
