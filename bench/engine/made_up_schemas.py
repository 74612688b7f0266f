"""JSON schemas made from a seed, of every kind that an answer's format may have, whose values all end soon.

Nested, recursive, `anyOf`, patterns, bounded numbers, enumerations, tuples, names and values beyond ASCII.
"""

from __future__ import annotations

import random
from typing import Final

from sessions.model.types import Json

NAMES: Final = (
    *("name", "age", "größe", "日付", "a b", 'quo"te', "back\\slash"),
    *("emoji 😀", "x", "kind", "items", "/", "città", "id"),
)
WORDS: Final = ("red", "grün", "синий", "日本", "😀 ok", 'say "hi"', "a\nb", "", "naïve", "\\n", 0, -3, 2.5, True, None)
PATTERNS: Final = (
    r"^[A-Z]{2}-[0-9]{3}$",
    r"^(red|green|blue)(-dark)?$",
    r"^[a-f0-9]{8}$",
    r"^[0-9]{4}-(0[1-9]|1[0-2])-[0-3][0-9]$",
    r"^[α-ω]{2,5}$",
    r"^\+?[0-9]{3,8}$",
    r"^[^aeiou]{1,6}$",
)
_DEPTH_MAX: Final = 3


def schema_of(seed: int) -> Json:
    """The schema of a seed: an object, one in four of them recursive."""
    chance = random.Random(f"schema {seed}")
    if seed % 4:
        return _object(chance, 0)
    node: Json = {
        "type": "object",
        "properties": {"value": _leaf(chance), "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}},
        "required": ["value", "next"],
        "additionalProperties": False,
    }
    if chance.random() < 0.5:
        node["properties"]["next"] = {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2}
    root: Json = {
        "type": "object",
        "properties": {"root": {"$ref": "#/$defs/node"}, "rest": _object(chance, 0)},
        "required": ["root", "rest"],
        "additionalProperties": False,
    }
    return {**root, "$defs": {"node": node}}


def _object(chance: random.Random, depth: int) -> Json:
    names = chance.sample(NAMES, chance.randint(2, 4) if depth else chance.randint(5, 9))
    return {
        "type": "object",
        "properties": {name: _value(chance, depth + 1) for name in names},
        "required": [name for name in names if chance.random() < 0.7],
        "additionalProperties": False,
    }


def _value(chance: random.Random, depth: int) -> Json:
    if depth >= _DEPTH_MAX or chance.random() < 0.55:
        return _leaf(chance)
    match chance.randrange(4):
        case 0:
            return _object(chance, depth)
        case 1:
            least = chance.randint(0, 1)
            return {"type": "array", "items": _value(chance, depth + 1), "minItems": least, "maxItems": least + 2}
        case 2:
            return {"anyOf": [_value(chance, depth + 1) for _ in range(chance.randint(2, 3))]}
        case _:
            items = [_leaf(chance) for _ in range(chance.randint(1, 3))]
            return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}


def _leaf(chance: random.Random) -> Json:
    match chance.randrange(7):
        case 0:
            return {"type": "string", "maxLength": chance.randint(1, 32)}
        case 1:
            return {"type": "string", "pattern": chance.choice(PATTERNS)}
        case 2:
            low = chance.randint(-1_000, 1_000)
            return {"type": "integer", "minimum": low, "maximum": low + chance.choice((0, 9, 5_000_000))}
        case 3:
            return {"type": "number", "minimum": -10, "maximum": 10, "multipleOf": 0.5}
        case 4:
            return {"enum": chance.sample(WORDS, chance.randint(1, 4))}
        case 5:
            return {"const": chance.choice(WORDS)}
        case _:
            return {"type": chance.choice(("boolean", "null"))}
