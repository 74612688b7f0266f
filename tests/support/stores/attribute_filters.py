"""Applies a filter on attributes without a database, so that indexes can be compared with it."""

from __future__ import annotations

from sessions.retrieval.filters import AttributeFilter, Attributes, Compound, Value


def matches(given: AttributeFilter, attributes: Attributes) -> bool:
    """Returns whether a file with these attributes passes the filter."""
    if isinstance(given, Compound):
        results = (matches(each, attributes) for each in given.filters)
        return all(results) if given.op == "and" else any(results)
    have = attributes.get(given.key)
    wanted = given.value if isinstance(given.value, tuple) else (given.value,)
    if given.op in ("eq", "in"):
        return any(_same(have, each) for each in wanted)
    if given.op in ("ne", "nin"):
        return not any(_same(have, each) for each in wanted)
    (bound,) = wanted
    if have is None or isinstance(have, bool) or isinstance(have, str) != isinstance(bound, str):
        return False
    order = (have > bound) - (have < bound)  # type: ignore[operator]
    return {"gt": order > 0, "gte": order >= 0, "lt": order < 0, "lte": order <= 0}[given.op]


def _same(have: Value | None, wanted: Value) -> bool:
    return have is not None and _kind(have) == _kind(wanted) and have == wanted


def _kind(value: Value) -> type:
    return bool if isinstance(value, bool) else str if isinstance(value, str) else float
