"""Describes what travels between processes and lies in stores, so that two releases can be held against each other.

`shapes()` is a JSON value of every message and record of the tree that it runs in; `breaches(old, new)` says what of
the new ones its neighbour cannot read, and what of the neighbour's the new one cannot. It stands by itself, so that it
can be run in another release's tree:

    PYTHONPATH=TREE python tests/support/neighbours/shapes.py
"""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec
from msgspec import inspect

Shape = dict[str, Any]
_PLAIN: Final = "type"


def shapes() -> dict[str, Shape]:
    """Of the tree that this runs in, by what it is."""
    from actors.directory.valkey import Activation
    from actors.peer import frames
    from inference.kv.envelope import SnapshotManifest
    from persistence.codec import HeadBody
    from sessions.machine.state import State
    from sessions.model.commands import Ok
    from sessions.model.events import AnyEvent, Private
    from sessions.model.types import UnixMs
    from sessions.ports import Member

    kinds: dict[str, Any] = {
        "peer message": list[frames.AnyFrame],
        "directory member": Member,
        "directory activation": Activation,
        "journal record": tuple[UnixMs, AnyEvent, Private | None],
        "journal head": HeadBody,
        "journal answer": Ok,
        "actor snapshot": State,
        "kv snapshot": SnapshotManifest,
    }
    described: dict[str, Shape] = {}
    for name, kind in kinds.items():
        named: dict[str, Shape] = {}
        described[name] = {"is": describe(inspect.type_info(kind), named), "of": named}
    return described


def versions() -> dict[str, int]:
    """Of what has a number of its own."""
    from inference.kv import envelope
    from persistence.codec import RECORD_VERSION
    from sessions.machine.state import STATE_VERSION

    return {"actor snapshot": STATE_VERSION, "kv snapshot": envelope.VERSION, "journal record": RECORD_VERSION}


def describe(kind: inspect.Type, named: dict[str, Shape]) -> Any:
    match kind:
        case inspect.Metadata():
            return describe(kind.type, named)
        case inspect.StructType():
            name = kind.cls.__name__
            if name not in named:
                named[name] = {}
                named[name] |= {
                    "tag": kind.tag,
                    "array": kind.array_like,
                    "strict": kind.forbid_unknown_fields,
                    "fields": [[each.encode_name, each.required, describe(each.type, named)] for each in kind.fields],
                }
            return name
        case inspect.UnionType():
            return {"any": sorted((describe(each, named) for each in kind.types), key=json.dumps)}
        case inspect.LiteralType():
            return {"one of": sorted(map(str, kind.values))}
        case inspect.TupleType():
            return {"tuple": [describe(each, named) for each in kind.item_types]}
        case inspect.DictType():
            return {"dict": [describe(kind.key_type, named), describe(kind.value_type, named)]}
        case inspect.CollectionType():
            return {"list": describe(kind.item_type, named)}
        case _:
            return {_PLAIN: type(kind).__name__}


class _Comparison:
    """One message's or record's shape, then and now. Structs are compared once, by name or by tag."""

    def __init__(self, where: str, old: Shape, new: Shape) -> None:
        self.where = where
        self.old, self.new = old["of"], new["of"]
        self.findings: list[str] = []
        self._seen: set[tuple[str, str]] = set()
        self.kinds(old["is"], new["is"], where)

    def kinds(self, old: Any, new: Any, at: str) -> None:
        if isinstance(old, str) and isinstance(new, str):
            self.structs(old, new)
        elif isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys():
            self.alike(old, new, at)
        else:
            self.union(_members(old), _members(new), at)

    def alike(self, old: Shape, new: Shape, at: str) -> None:
        (word,) = old
        was, now = old[word], new[word]
        match word:
            case "any":
                self.union(was, now, at)
            case "one of":
                if set(now) != set(was):
                    self.findings.append(f"{at}: the values {sorted(set(was) ^ set(now))} are known to one side alone")
            case "tuple" | "dict":
                if len(was) != len(now):
                    self.findings.append(f"{at}: {len(was)} parts, now {len(now)}")
                for one, another in zip(was, now, strict=False):
                    self.kinds(one, another, at)
            case "list":
                self.kinds(was, now, at)
            case _:
                if was != now:
                    self.findings.append(f"{at}: was {was}, is {now}")

    def union(self, old: list[Any], new: list[Any], at: str) -> None:
        was, now = self.by_tag(self.old, old), self.by_tag(self.new, new)
        self.findings += [f"{at}: {tag} is read no more" for tag in was.keys() - now.keys()]
        self.findings += [f"{at}: {tag} is new to the neighbour" for tag in now.keys() - was.keys()]
        for tag in was.keys() & now.keys():
            self.kinds(was[tag], now[tag], f"{at} {tag}")

    @staticmethod
    def by_tag(named: dict[str, Shape], kinds: list[Any]) -> dict[str, Any]:
        tagged = {}
        for kind in kinds:
            tag = named[kind]["tag"] if isinstance(kind, str) else None
            tagged[f"tag {tag}" if tag is not None else _word(kind)] = kind
        return tagged

    def structs(self, old: str, new: str) -> None:
        if (old, new) in self._seen:
            return
        self._seen.add((old, new))
        was, now, at = self.old[old], self.new[new], f"{self.where}: {new}"
        before, after = was["fields"], now["fields"]
        if was["array"]:
            if [name for name, *_ in after[: len(before)]] != [name for name, *_ in before]:
                self.findings.append(f"{at}: its first fields are other ones; new ones stand behind")
            added = after[len(before) :]
            pairs = list(zip(before, after, strict=False))
        else:
            here = {name: rest for name, *rest in after}
            gone = [name for name, required, _ in before if required and name not in here]
            self.findings += [f"{at}: {name}, which the neighbour needs, is not written any more" for name in gone]
            known = {name for name, *_ in before}
            added = [each for each in after if each[0] not in known]
            pairs = [([name, *rest], [name, *here[name]]) for name, *rest in before if name in here]
        self.findings += [f"{at}: {name} is new and has no default" for name, required, _ in added if required]
        if was["strict"] and added:
            self.findings.append(f"{at}: the neighbour refuses fields that it does not know")
        for one, another in pairs:
            if another[1] and not one[1]:
                self.findings.append(f"{at}: {one[0]} had a default, which the neighbour may leave out")
            self.kinds(one[2], another[2], f"{at}.{one[0]}")


def _keys(kind: Any) -> tuple[str, ...]:
    return tuple(kind) if isinstance(kind, dict) else ()


def _members(kind: Any) -> list[Any]:
    return list(kind["any"]) if "any" in _keys(kind) else [kind]


def _word(kind: Any) -> str:
    if isinstance(kind, str):
        return "an object"
    (word,) = kind
    return str(kind[word]) if word == _PLAIN else str(word)


def breaches(old: dict[str, Shape], new: dict[str, Shape]) -> list[str]:
    """What two neighbours cannot read of each other."""
    findings = [f"{name} is gone" for name in old.keys() - new.keys()]
    for name in sorted(old.keys() & new.keys()):
        findings += _Comparison(name, old[name], new[name]).findings
    return findings


if __name__ == "__main__":
    print(msgspec.json.format(msgspec.json.encode({"shapes": shapes(), "versions": versions()}), indent=1).decode())
