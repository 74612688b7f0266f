"""The values of conformance cases: names, matchers, things to make (docs/protocol/README.md, "Values").

``play`` turns a case's value into what is sent; ``match`` compares what arrived with it and says where they differ.
"""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

from sessile_client._ids import ulid

CASES = Path(__file__).parents[3] / "docs" / "protocol" / "cases"
_NAME = re.compile(r"\$([A-Z][A-Z0-9_]*)")
_ULID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")
_ABSENT = object()


class Mismatch(AssertionError):
    """What arrived is not what the case says."""


def load_cases(runs: str) -> list[dict[str, Any]]:
    """Every case that applies to ``server`` or ``client``, by name."""
    cases = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(CASES.glob("*.json"))]
    return [case for case in cases if runs in case["runs"]]


class Values:
    """The names of one run."""

    def __init__(self, given: dict[str, Any], rng: random.Random) -> None:
        self.bound: dict[str, Any] = {}
        self._given = given
        self._rng = rng

    def play(self, value: Any) -> Any:
        """What the runner sends for ``value``."""
        if isinstance(value, str):
            name = _NAME.fullmatch(value)
            if name:
                return self._named(name[1])
            return value[1:] if value.startswith("$$") else value
        if isinstance(value, list):
            return [self.play(entry) for entry in value]
        if not isinstance(value, dict):
            return value
        match value:
            case {"$any": _, "eg": example}:
                made = self.play(example)
                if "as" in value:
                    self.bound.setdefault(value["as"], made)
                return made
            case {"$opt": inner}:
                return self.play(inner)
            case {"$absent": _}:
                return _ABSENT
            case {"$add": terms}:
                return sum(self.play(term) for term in terms)
            case {"$repeat": text, "times": times}:
                return text * times
            case {"$nest": depth}:
                nested: list[Any] = []
                for _ in range(depth):
                    nested = [nested]
                return nested
            case {"$new": kind}:
                return ulid(1_760_000_000_000, self._rng) if kind == "ulid" else f"ses_{self._rng.getrandbits(60):x}"
        if any(key.startswith("$") and not _NAME.fullmatch(key) for key in value):
            raise ValueError(f"{value} cannot be played")
        played = {self.play(key): self.play(inner) for key, inner in value.items()}
        return {key: inner for key, inner in played.items() if inner is not _ABSENT}

    def _named(self, name: str) -> Any:
        if name not in self.bound:
            if name not in self._given:
                raise ValueError(f"${name} is played before anything bound it, and given has nothing for it")
            self.bound[name] = self.play(self._given[name])
        return self.bound[name]

    def match(self, expected: Any, got: Any, path: str = "") -> None:
        """Raise Mismatch, naming the place, unless ``got`` is what ``expected`` allows."""
        if isinstance(expected, str):
            name = _NAME.fullmatch(expected)
            if name:
                _equal(self.bound.setdefault(name[1], got), got, path)
                return
            _equal(expected[1:] if expected.startswith("$$") else expected, got, path)
        elif isinstance(expected, dict) and any(key.startswith("$") and not _NAME.fullmatch(key) for key in expected):
            self._match_special(expected, got, path)
        elif isinstance(expected, dict):
            if not isinstance(got, dict):
                raise Mismatch(f"{path or '.'}: expected an object, got {got!r}")
            for key, inner in expected.items():
                field = self.play(key)
                at = f"{path}.{field}"
                if isinstance(inner, dict) and "$absent" in inner:
                    if field in got:
                        raise Mismatch(f"{at}: must be absent, is {got[field]!r}")
                elif isinstance(inner, dict) and "$opt" in inner:
                    if field in got:
                        self.match(inner["$opt"], got[field], at)
                elif field not in got:
                    raise Mismatch(f"{at}: missing in {got!r}")
                else:
                    self.match(inner, got[field], at)
        elif isinstance(expected, list):
            if not isinstance(got, list) or len(got) != len(expected):
                raise Mismatch(f"{path or '.'}: expected {expected!r}, got {got!r}")
            for index, inner in enumerate(expected):
                self.match(inner, got[index], f"{path}[{index}]")
        else:
            _equal(expected, got, path)

    def _match_special(self, expected: dict[str, Any], got: Any, path: str) -> None:
        match expected:
            case {"$any": type_}:
                if not _of_type(type_, got):
                    raise Mismatch(f"{path or '.'}: expected any {type_}, got {got!r}")
                if "as" in expected:
                    self.bound[expected["as"]] = got
            case {"$range": [low, high]}:
                if not isinstance(got, int) or not self.play(low) <= got <= self.play(high):
                    raise Mismatch(f"{path or '.'}: expected {low} to {high}, got {got!r}")
            case {"$one_of": choices}:
                if got not in [self.play(choice) for choice in choices]:
                    raise Mismatch(f"{path or '.'}: expected one of {choices!r}, got {got!r}")
            case _:
                _equal(self.play(expected), got, path)


def _equal(expected: Any, got: Any, path: str) -> None:
    if type(expected) is not type(got) or expected != got:
        raise Mismatch(f"{path or '.'}: expected {expected!r}, got {got!r}")


def _of_type(type_: str, value: Any) -> bool:
    match type_:
        case "int":
            return isinstance(value, int) and not isinstance(value, bool)
        case "number":
            return isinstance(value, (int, float)) and not isinstance(value, bool)
        case "string":
            return isinstance(value, str)
        case "ulid":
            return isinstance(value, str) and _ULID.fullmatch(value) is not None
        case "bool":
            return isinstance(value, bool)
        case "object":
            return isinstance(value, dict)
        case "array":
            return isinstance(value, list)
        case "any":
            return True
    raise ValueError(f"unknown type {type_}")
