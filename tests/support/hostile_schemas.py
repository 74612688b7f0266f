"""Generates JSON schemas that mean no good, from a seed: each kind from harmless to absurd.

Every kind draws its size from a logarithmic scale, so that about half lie within the bounds and reach the engine, where
they are to be as harmless as the bounds say.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

Schema = dict[str, Any]

PATTERNS: Final = ("^[a-z]{{{n}}}$", "^(a|b|ab){{0,{n}}}c$", "^(.{{0,{n}}}x){{{n}}}$", "^\\w{{{n}}}$", "^.*a.{{{n}}}$")


class HostileSchema(NamedTuple):
    kind: str
    schema: Schema


def hostile_schemas(seed: int, count: int) -> Iterator[HostileSchema]:
    """As many of each kind, in a mixed order that the seed gives."""
    rng = random.Random(seed)
    kinds = [KINDS[number % len(KINDS)] for number in range(count)]
    rng.shuffle(kinds)
    for number, make in enumerate(kinds):
        schema = make(rng)
        yield HostileSchema(make.__name__.lstrip("_"), {"type": "object", "$comment": f"{seed}-{number}", **schema})


def _size(rng: random.Random, most: float) -> int:
    """From 1 to `most`, each magnitude as likely."""
    return max(1, int(most ** rng.random()))


def _holding(schema: Schema, **more: Any) -> Schema:
    return {"properties": {"a": schema}, "required": ["a"], **more}


def _nesting(rng: random.Random) -> Schema:
    schema: Schema = {"type": "integer"}
    for _ in range(_size(rng, 150)):
        schema = rng.choice(
            (
                {"type": "object", "properties": {"a": schema}, "required": ["a"]},
                {"type": "array", "items": schema},
                {"anyOf": [schema, {"type": "null"}]},
                {"allOf": [schema]},
            )
        )
    return _holding(schema)


def _references(rng: random.Random) -> Schema:
    """Doubled (or more) from level to level."""
    reference = rng.choice(("$ref", "$ref", "$dynamicRef", "$recursiveRef"))
    combined, width, levels = rng.choice(("allOf", "anyOf", "oneOf")), rng.choice((2, 2, 3, 8)), _size(rng, 64)
    definitions: Schema = {}
    for level in range(levels):
        target = {reference: f"#/$defs/d{level + 1}"}
        members: list[Any] = [dict(target) for _ in range(width)]
        if rng.random() < 0.3:
            members = [{"type": "object", "properties": {"p": each}} for each in members]
        definitions[f"d{level}"] = {combined: members}
    definitions[f"d{levels}"] = {"type": "object", "properties": {"x": {"type": "integer"}}}
    return _holding({"$ref": "#/$defs/d0"}, **{"$defs": definitions})


def _recursion(rng: random.Random) -> Schema:
    node: Schema = {"$ref": "#/$defs/n"}
    properties: Schema = {"type": "object", "properties": {"p": node, "q": node}}
    made = rng.choice(
        (
            {"$ref": "#/$defs/n"},
            {"anyOf": [node, {"type": "integer"}]},
            {"allOf": [properties, properties]},
            {"anyOf": [properties, {"type": "object", "properties": {"p": node}}, {"type": "null"}]},
            {"type": "object", "properties": {f"p{n}": node for n in range(_size(rng, 200))}},
            {"type": "array", "items": node, "contains": node, "maxItems": _size(rng, 10**6)},
            {"not": node},
            {"$ref": rng.choice(("https://example.org/schema.json", "other.json", "#/$defs/none", "#nowhere"))},
        )
    )
    return _holding(node, **{"$defs": {"n": made}})


def _counts(rng: random.Random) -> Schema:
    schema: Schema = {"type": "string", rng.choice(("minLength", "maxLength")): _size(rng, 10**9)}
    for _ in range(rng.randrange(4)):
        schema = {"type": "array", "items": schema, rng.choice(("minItems", "maxItems")): _size(rng, 10**9)}
    if rng.random() < 0.2:
        schema = {"type": "object", rng.choice(("minProperties", "maxProperties")): _size(rng, 10**9)}
    return _holding(schema)


def _patterns(rng: random.Random) -> Schema:
    if rng.random() < 0.4:
        depth, times = rng.randrange(1, 12), _size(rng, 1000)
        pattern = "^" + "(" * depth + rng.choice(("a", "[a-z]", "a|b", ".")) + f"){{{times}}}" * depth + "$"
    else:
        pattern = rng.choice(PATTERNS).format(n=_size(rng, 10**5))
    if rng.random() < 0.2:
        return {"patternProperties": {pattern: {"type": "integer"}}, "additionalProperties": False}
    return _holding({"type": "string", "pattern": pattern})


def _enumerations(rng: random.Random) -> Schema:
    count, length = _size(rng, 20_000), _size(rng, 100)
    values: list[Any] = [f"{'v' * length}{number}" for number in range(count)]
    if rng.random() < 0.2:
        values = [{"k": value} for value in values]
    return _holding({"enum": values} if rng.random() < 0.7 else {"const": "".join(map(str, values))})


def _unions(rng: random.Random) -> Schema:
    combined, width, factors = rng.choice(("anyOf", "oneOf")), _size(rng, 800), _size(rng, 12)
    members = [{"type": "object", "properties": {f"k{n}": {"type": "integer"}}} for n in range(width)]
    if factors == 1:
        return _holding({combined: members})
    return _holding({"allOf": [{combined: members[: max(2, width // factors)]} for _ in range(factors)]})


def _mixed(rng: random.Random) -> Schema:
    """Several of the kinds above in one document, each within the bounds perhaps."""
    parts = [make(rng) for make in rng.sample(KINDS[:-1], rng.randrange(2, 5))]  # definitions are named by their kind
    definitions = {name: schema for part in parts for name, schema in part.pop("$defs", {}).items()}
    properties = {f"m{number}": {"type": "object", **part} for number, part in enumerate(parts)}
    return {"properties": properties, "required": list(properties), "$defs": definitions}


KINDS: Final[tuple[Callable[[random.Random], Schema], ...]] = (
    _nesting,
    _references,
    _recursion,
    _counts,
    _patterns,
    _enumerations,
    _unions,
    _mixed,
)
