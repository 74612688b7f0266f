"""Bounds the cost of JSON schemas: of compiling one, checking a value against it, or making a grammar of it.

A schema of a few hundred bytes can cost without end: references doubled under `allOf` (2ⁿ), counts of 10⁸, unions
within conjunctions (their product), patterns that repeat repetitions. Each bound stands for one of these, is set by
what the engines take (docs/benchmarks.md), and is reported with its place.

The cost is counted in two passes. The first reads every value once. The second *expands*: it combines the schemas that
hold at one place of a document, with references followed and unions as alternatives, and goes on to the places below. A
schema that holds twice is counted twice, so a reference that doubles from level to level is noticed whether it consumes
input or not; a recursion ends when it comes to the same set of schemas again. A value's check costs at most what one
place may expand to, times the value's size.

Pure. The bounds also limit the time that measuring takes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, Final
from urllib.parse import unquote, urldefrag, urljoin

import msgspec

from sessions.model.pattern_size import pattern_size
from sessions.model.types import Json


class SchemaBounds(msgspec.Struct, frozen=True, kw_only=True):
    values: int = 5_000  # objects, lists and the values in them
    depth: int = 60  # of objects and lists; engines read 64, and add some levels
    properties: int = 500  # names, and patterns of names, in one object
    choices: int = 2_000  # of one `enum`
    members: int = 256  # of one allOf, anyOf, oneOf or prefixItems
    literal_chars: int = 120_000  # in names, `const`, `enum` and patterns together
    literal: int = 10_000  # characters of one name or value
    count: int = 4_000  # of items or properties, in one place
    counts: int = 10_000  # of items, all together
    length: int = 100_000  # of a string
    product: int = 1_000_000  # of counts that stand within each other
    pattern_chars: int = 1_000
    pattern_size: int = 5_000  # characters of a pattern whose repetitions are written out
    pattern_total: int = 20_000  # of all patterns
    chain: int = 64  # references and combinations behind one another that consume nothing
    alternatives: int = 256  # ways in which the unions at one place combine
    place: int = 1_000  # schemas that hold at one place together
    place_patterns: int = 4  # patterns that a string is to match at once
    place_multiple: int = 5_000  # product of all `multipleOf` at one place
    expanded: int = 10_000  # schemas at all places


BOUNDS: Final = SchemaBounds()

_COUNTS: Final = frozenset({"minItems", "maxItems", "minProperties", "maxProperties", "minContains", "maxContains"})
_ITEM_COUNTS: Final = frozenset({"minItems", "maxItems", "minContains", "maxContains"})
_LENGTHS: Final = frozenset({"minLength", "maxLength"})
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_LISTS: Final = ("allOf", "anyOf", "oneOf", "prefixItems")
_UNIONS: Final = ("anyOf", "oneOf")
_IN_PLACE: Final = ("not", "if", "then", "else")
_BY_NAME: Final = ("properties", "patternProperties")
_OF_ANY_NAME: Final = ("additionalProperties", "unevaluatedProperties", "propertyNames")
_OF_ANY_ITEM: Final = ("items", "additionalItems", "unevaluatedItems", "contains")
_DEPENDENT: Final = ("dependentSchemas", "dependencies")
_DEFINITIONS: Final = ("$defs", "definitions")
_LITERALS: Final = ("const", "enum", "default", "examples", "example")
_TEXT: Final = ("description", "title", "$comment", "default", "examples", "example")
_ANY: Final = "*"
_LARGE: Final = 10**9

Node = dict[str, Json]
Held = tuple[tuple[int, int], ...]  # the schemas that hold at one place: (identity, how often), in order


class SchemaSize(msgspec.Struct, frozen=True, array_like=True):
    """The cost of a schema within the bounds. Sizes add up if several schemas make one grammar."""

    values: int
    expanded: int
    patterns: int


class SchemaTooCostly(ValueError):
    """Raised for a schema that exceeds a bound. `pointer` is the place, as a JSON pointer, "" for the whole schema."""

    def __init__(self, reason: str, pointer: str) -> None:
        super().__init__(reason)
        self.pointer = pointer


def measure_schema(schema: Json, bounds: SchemaBounds = BOUNDS) -> SchemaSize:
    """Returns the size of a schema. Raises SchemaTooCostly at the first bound that it exceeds."""
    document = _Document(bounds)
    document.read(schema)
    _Products(document).check(schema)
    expansion = _Expansion(document)
    expansion.expand(schema)
    return SchemaSize(document.values, expansion.work, document.patterns)


class _Document:
    """The first pass: counts every value once, and finds where references lead."""

    def __init__(self, bounds: SchemaBounds) -> None:
        self.bounds = bounds
        self.pointers: dict[int, str] = {}  # of objects, by identity
        self.nodes: dict[int, Node] = {}
        self._base: dict[int, str] = {}
        self._resources: dict[str, Node] = {}
        self._anchors: dict[tuple[str, str], Node] = {}
        self._dynamic: dict[str, list[Node]] = {}
        self.values = self.patterns = self._literal_chars = self._counts = 0

    def read(self, schema: Json) -> None:
        if not isinstance(schema, dict):
            return
        self._resources[""] = schema
        # (value, pointer, depth, base, the keyword or name that it stands under, whether the writer chose its names,
        # whether it stands in a value such as `const`'s and is no schema)
        waiting: list[tuple[Any, str, int, str, str, bool, bool]] = [(schema, "", 1, "", "", False, False)]
        while waiting:
            value, pointer, depth, base, under, names, literal = waiting.pop()
            self._count(pointer)
            if isinstance(value, str):
                if literal and under not in _TEXT:
                    self._literals(len(value), pointer)
                continue
            if not isinstance(value, dict | list):
                continue
            if depth > self.bounds.depth:
                raise SchemaTooCostly(f"It nests deeper than {self.bounds.depth} levels", pointer)
            if isinstance(value, list):
                self._list(value, under, pointer)
                waiting += [
                    (each, f"{pointer}/{i}", depth + 1, base, under, False, literal) for i, each in enumerate(value)
                ]
                continue
            if not names and not literal:
                base = self._enter(value, pointer, base)
            elif len(value) > self.bounds.properties:
                raise SchemaTooCostly(f"It has more than {self.bounds.properties} names", pointer)
            for name, each in value.items():
                at = f"{pointer}/{_escaped(name)}"
                if names or literal:
                    self._literals(len(name), at)
                if names and under == "patternProperties":
                    self._pattern(name, at)
                if not names and not literal:
                    self._keyword(name, each, at)
                schema_names = (
                    not names
                    and not literal
                    and (name in _BY_NAME or name in _DEFINITIONS or name == "dependentSchemas")
                )
                waiting.append(
                    (
                        each,
                        at,
                        depth + 1,
                        base,
                        under if literal else name,
                        schema_names,
                        literal or (not names and name in _LITERALS),
                    )
                )

    def _count(self, pointer: str) -> None:
        self.values += 1
        if self.values > self.bounds.values:
            raise SchemaTooCostly(f"It holds more than {self.bounds.values} values", pointer)

    def _literals(self, chars: int, pointer: str) -> None:
        if chars > self.bounds.literal:
            raise SchemaTooCostly(f"A name or value may have {self.bounds.literal} characters at most", pointer)
        self._literal_chars += chars
        if self._literal_chars > self.bounds.literal_chars:
            raise SchemaTooCostly(
                f"Its names and values take more than {self.bounds.literal_chars} characters", pointer
            )

    def _list(self, value: list[Json], under: str, pointer: str) -> None:
        if under == "enum" and len(value) > self.bounds.choices:
            raise SchemaTooCostly(f"An enumeration has more than {self.bounds.choices} values", pointer)
        if under in _LISTS and len(value) > self.bounds.members:
            raise SchemaTooCostly(f"{under} has more than {self.bounds.members} members", pointer)

    def _enter(self, node: Node, pointer: str, base: str) -> str:
        """Notes an object that may be a schema; returns the base URI that holds inside it."""
        identifier = node.get("$id", node.get("id"))
        if isinstance(identifier, str) and not identifier.startswith("#"):
            base = urldefrag(_joined(base, identifier))[0]
            self._resources.setdefault(base, node)
        for keyword in ("$anchor", "$dynamicAnchor"):
            anchor = node.get(keyword)
            if isinstance(anchor, str):
                self._anchors.setdefault((base, anchor), node)
                if keyword == "$dynamicAnchor":
                    self._dynamic.setdefault(anchor, []).append(node)
        if isinstance(identifier, str) and identifier.startswith("#"):
            self._anchors.setdefault((base, identifier[1:]), node)
        if node.get("$recursiveAnchor") is True:
            self._dynamic.setdefault("", []).append(node)
        self.nodes[id(node)] = node
        self.pointers[id(node)] = pointer
        self._base[id(node)] = base
        return base

    def _keyword(self, name: str, value: Json, pointer: str) -> None:
        bounds = self.bounds
        if name == "pattern" and isinstance(value, str):
            self._pattern(value, pointer)
        for names, most in ((_COUNTS, bounds.count), (_LENGTHS, bounds.length)):
            if name in names and isinstance(value, int | float) and value > most:
                raise SchemaTooCostly(f"{name} may be {most} at most", pointer)
        if name in _ITEM_COUNTS and isinstance(value, int | float):
            self._counts += max(0, int(value))
            if self._counts > bounds.counts:
                raise SchemaTooCostly(f"All counts of items together make more than {bounds.counts}", pointer)

    def _pattern(self, pattern: str, pointer: str) -> None:
        bounds = self.bounds
        if len(pattern) > bounds.pattern_chars:
            raise SchemaTooCostly(f"A pattern may have {bounds.pattern_chars} characters at most", pointer)
        size = pattern_size(pattern)
        if size > bounds.pattern_size:
            raise SchemaTooCostly(
                f"A pattern may have {bounds.pattern_size} characters at most, repetitions written out", pointer
            )
        self.patterns += size
        if self.patterns > bounds.pattern_total:
            raise SchemaTooCostly(
                f"All patterns may have {bounds.pattern_total} characters at most, repetitions written out", pointer
            )

    # -- references ----------------------------------------------------------------------------------------------

    def targets(self, node: Node) -> Iterator[list[Json]]:
        """Yields, for each reference of a schema, the schemas that it may lead to: several for a dynamic reference.
        Raises SchemaTooCostly for a reference to another document."""
        for keyword in _REFERENCES:
            reference = node.get(keyword)
            if isinstance(reference, str):
                at = f"{self.pointers.get(id(node), '')}/{keyword}"
                options = [self._resolve(reference, self._base.get(id(node), ""), at)]
                if keyword != "$ref":
                    options += self._dynamic.get(urldefrag(reference)[1], ())
                yield list({id(target): target for target in options}.values())

    def _resolve(self, reference: str, base: str, at: str) -> Json:
        document, fragment = urldefrag(_joined(base, reference))
        target: Json = self._resources.get(document)
        if target is None:
            raise SchemaTooCostly("References to other documents are not followed", at)
        if not fragment:
            return target
        if not fragment.startswith("/"):
            return self._anchors.get((document, unquote(fragment)))
        for part in unquote(fragment)[1:].split("/"):
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(target, dict):
                target = target.get(name)
            elif (
                isinstance(target, list)
                and name.isascii()
                and name.isdigit()
                and len(name) < 6
                and int(name) < len(target)
            ):
                target = target[int(name)]
            else:
                return None
        if isinstance(target, dict) and id(target) not in self.nodes:  # a schema where none was expected
            self.nodes[id(target)], self.pointers[id(target)], self._base[id(target)] = target, fragment, document
        return target


class _Products:
    """Bounds the product of counts that are nested: a list of 1,000 lists of 1,000 is a million."""

    def __init__(self, document: _Document) -> None:
        self._document = document
        self._known: dict[int, int] = {}
        self._open: set[int] = set()

    def check(self, schema: Json) -> None:
        self._product(schema, 0)

    def _product(self, schema: Json, level: int) -> int:
        if not isinstance(schema, dict) or id(schema) in self._open:
            return 1  # a recursion ends where its values do
        if id(schema) in self._known:
            return self._known[id(schema)]
        document, bounds = self._document, self._document.bounds
        at = document.pointers.get(id(schema), "")
        if level > 2 * bounds.depth:
            raise SchemaTooCostly(
                f"More than {2 * bounds.depth} schemas stand within each other, references followed", at
            )
        self._open.add(id(schema))
        inner = max((self._product(each, level + 1) for each in self._below(schema)), default=1)
        self._open.discard(id(schema))
        own = max((int(schema[name]) for name in (*_COUNTS, *_LENGTHS) if _is_count(schema.get(name))), default=1)
        product = max(1, own) * inner
        if product > bounds.product:
            raise SchemaTooCostly(f"Counts that stand within each other make more than {bounds.product}", at)
        self._known[id(schema)] = product
        return product

    def _below(self, schema: Node) -> Iterator[Json]:
        for options in self._document.targets(schema):
            yield from options
        yield from _members(schema, _LISTS)
        yield from _named(schema, (*_BY_NAME, *_DEPENDENT))
        yield from (
            schema[name] for name in (*_IN_PLACE, *_OF_ANY_NAME, *_OF_ANY_ITEM) if isinstance(schema.get(name), dict)
        )
        yield from _members(schema, ("items",))


class _Expansion:
    """The second pass: finds which schemas hold together at each place of a document."""

    def __init__(self, document: _Document) -> None:
        self._document = document
        self._bounds = document.bounds
        self.work = 0

    def expand(self, schema: Json) -> None:
        waiting = [self._place([schema])]
        seen: set[Held] = set(waiting)
        while waiting:
            for held in self._places_below(waiting.pop()):
                if held and held not in seen:
                    seen.add(held)
                    waiting.append(held)

    def _places_below(self, held: Held) -> Iterator[Held]:
        together: list[list[Node]] = [[]]
        for identity, times in held:
            node = self._document.nodes[identity]
            for _ in range(times):
                together = self._product(together, self._alternatives(node, (), 0), node)
        for nodes in together:
            self._spend(len(nodes), nodes[-1] if nodes else {})
            self._combine(nodes)
            yield from self._below(nodes)

    def _combine(self, nodes: list[Node]) -> None:
        """Raises SchemaTooCostly if too many patterns, or too large multiples of numbers, hold at one place, because
        engines combine them."""
        patterns, multiple = 0, 1
        for node in nodes:
            at = self._document.pointers.get(id(node), "")
            patterns += "pattern" in node
            if patterns > self._bounds.place_patterns:
                raise SchemaTooCostly(f"More than {self._bounds.place_patterns} patterns hold at one place", at)
            multiple *= _coefficient(node.get("multipleOf", 1))
            if multiple > self._bounds.place_multiple:
                raise SchemaTooCostly(f"multipleOf may be {self._bounds.place_multiple} at most at one place", at)

    def _below(self, nodes: list[Node]) -> Iterator[Held]:
        """Yields the places one level below a place at which all of `nodes` hold."""
        consuming = [node for node in nodes if not _CONSUMING.isdisjoint(node)]
        if not consuming:
            return
        named: dict[str, list[Json]] = {}
        items: dict[str, list[Json]] = {}
        for node in consuming:
            properties = node.get("properties")
            if isinstance(properties, dict):
                for name, each in properties.items():
                    named.setdefault(name, []).append(each)
            for each in (*_named(node, ("patternProperties",)), *(node[k] for k in _OF_ANY_NAME if k in node)):
                named.setdefault(_ANY, []).append(each)
            prefix = node.get("prefixItems", node.get("items"))
            if isinstance(prefix, list):
                for index, each in enumerate(prefix):
                    items.setdefault(str(index), []).append(each)
            for each in (node[k] for k in _OF_ANY_ITEM if k in node):
                items.setdefault(_ANY, []).append(each)
        for places in (named, items):
            anywhere = places.pop(_ANY, [])
            if anywhere:
                yield self._place(anywhere)
            for each in places.values():
                self._spend(1, nodes[-1])
                yield self._place([*each, *anywhere])

    def _place(self, schemas: list[Json]) -> Held:
        schemas = [self._led(each) for each in schemas]
        held = _held(schemas)
        for identity, _ in held:
            self._document.nodes.setdefault(identity, next(each for each in schemas if id(each) == identity))
        self._fits(sum(times for _, times in held), self._document.nodes[held[0][0]] if held else {})
        return held

    def _led(self, schema: Json) -> Json:
        """Returns the target of a schema that is nothing but a reference, so that many references to one target count
        as one place; other schemas as they are."""
        led = schema
        for _ in range(self._bounds.chain):
            if not isinstance(led, dict) or not isinstance(led.get("$ref"), str) or len(_LEADING & led.keys()) > 1:
                return led
            led = next(self._document.targets(led))[0]
        return schema

    def _alternatives(self, node: Node, above: tuple[int, ...], level: int) -> list[list[Node]]:
        """Returns the alternatives of a schema at its place: sets of schemas, of which one set must hold where `node`
        does. Each set includes the schemas that its members refer to there."""
        at = self._document.pointers.get(id(node), "")
        if id(node) in above:
            raise SchemaTooCostly("It refers to itself without consuming any input", at)
        if level > self._bounds.chain:
            raise SchemaTooCostly(f"More than {self._bounds.chain} references or combinations follow each other", at)
        self._spend(1, node)
        above = (*above, id(node))
        together: list[list[Node]] = [[node]]
        if _COMBINING.isdisjoint(node):
            return together
        choices = [[each] for each in (*_members(node, ("allOf",)), *_named(node, _DEPENDENT))]
        choices += [[node[name]] for name in _IN_PLACE if name in node]
        choices += [*self._document.targets(node), *([*_members(node, (union,))] for union in _UNIONS)]
        for choice in choices:
            either: list[list[Node]] = []
            for each in choice:
                if isinstance(each, dict):
                    self._document.nodes.setdefault(id(each), each)
                    either += self._alternatives(each, above, level + 1)
            if either:
                together = self._product(together, either, node)
        return together

    def _product(self, left: list[list[Node]], right: list[list[Node]], node: Node) -> list[list[Node]]:
        if len(left) * len(right) > self._bounds.alternatives:
            raise SchemaTooCostly(
                f"Its unions combine in more than {self._bounds.alternatives} ways",
                self._document.pointers.get(id(node), ""),
            )
        self._fits(max(map(len, left)) + max(map(len, right), default=0), node)
        made = [[*one, *other] for one in left for other in right]
        self._spend(sum(map(len, made)) // 16, node)
        return made

    def _fits(self, size: int, node: Node) -> None:
        if size > self._bounds.place:
            at = self._document.pointers.get(id(node), "")
            raise SchemaTooCostly(f"More than {self._bounds.place} schemas hold at one place, references followed", at)

    def _spend(self, work: int, node: Node) -> None:
        self.work += work
        if self.work > self._bounds.expanded:
            at = self._document.pointers.get(id(node), "")
            raise SchemaTooCostly(f"It expands to more than {self._bounds.expanded} schemas", at)


_CONSUMING: Final = frozenset({*_BY_NAME, *_OF_ANY_NAME, *_OF_ANY_ITEM, "prefixItems"})
_COMBINING: Final = frozenset({*_REFERENCES, *_UNIONS, *_IN_PLACE, "allOf", *_DEPENDENT})
_LEADING: Final = _CONSUMING | _COMBINING | {"pattern", "multipleOf"}


def _held(schemas: Iterable[Json]) -> Held:
    times: dict[int, int] = {}
    for each in schemas:
        if isinstance(each, dict) and not _LEADING.isdisjoint(each):
            times[id(each)] = times.get(id(each), 0) + 1
    return tuple(sorted(times.items()))


def _members(node: Node, keywords: Iterable[str]) -> Iterator[Json]:
    for keyword in keywords:
        members = node.get(keyword)
        if isinstance(members, list):
            yield from members


def _named(node: Node, keywords: Iterable[str]) -> Iterator[Json]:
    for keyword in keywords:
        named = node.get(keyword)
        if isinstance(named, dict):
            yield from named.values()


def _coefficient(value: Json) -> int:
    """Returns a number's digits without its power of ten: 250 and 0.025 give 25; 1 if the value is no number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        return 1
    if value > _LARGE:
        return _LARGE
    digits, _, power = f"{value:e}".partition("e")
    return int(value) if isinstance(value, int) or int(power) >= 0 else int(digits.replace(".", "").rstrip("0") or 1)


def _is_count(value: Json) -> bool:
    return isinstance(value, int | float) and value > 1


def _joined(base: str, reference: str) -> str:
    try:
        return urljoin(base, reference) if base else reference
    except ValueError:
        return reference


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
