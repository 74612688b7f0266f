"""Filters on attributes: what they mean, and what is no filter."""

from __future__ import annotations

from typing import Any

import pytest

from sessions.model.errors import BadInput
from sessions.retrieval.filters import COMPARISONS_MAX, check_attributes, matches, parse_filter


def eq(key: str = "k", value: Any = 1) -> dict[str, Any]:
    return {"type": "eq", "key": key, "value": value}


@pytest.mark.parametrize(
    ("given", "attributes", "passes"),
    [
        (eq(), {"k": 1}, True),
        (eq(), {"k": 1.0}, True),
        (eq(), {"k": True}, False),
        (eq(value=True), {"k": True}, True),
        (eq(value="1"), {"k": 1}, False),
        ({"type": "gt", "key": "k", "value": 1}, {"k": 2}, True),
        ({"type": "gt", "key": "k", "value": 1}, {"k": "2"}, False),
        ({"type": "lt", "key": "k", "value": "b"}, {"k": "a"}, True),
        ({"type": "lt", "key": "k", "value": 1}, {}, False),
        ({"type": "ne", "key": "k", "value": 1}, {}, True),
        ({"type": "nin", "key": "k", "value": [1, 2]}, {"k": 2}, False),
        ({"type": "in", "key": "k", "value": ["a"]}, {"k": "a"}, True),
        ({"type": "or", "filters": [eq(), eq("z")]}, {"z": 1}, True),
        ({"type": "and", "filters": [eq(), eq("z")]}, {"z": 1}, False),
    ],
)
def test_what_passes(given: dict[str, Any], attributes: dict[str, Any], passes: bool) -> None:
    assert matches(parse_filter(given), attributes) is passes


DEEP: dict[str, Any] = eq()
for _ in range(10):
    DEEP = {"type": "and", "filters": [DEEP]}


@pytest.mark.parametrize(
    "given",
    [
        None,
        [],
        {},
        {"type": "like", "key": "k", "value": "x"},
        {"type": "eq", "key": "", "value": 1},
        {"type": "eq", "key": "k"},
        {"type": "eq", "key": "k", "value": None},
        {"type": "eq", "key": "k", "value": [1]},
        {"type": "eq", "key": "k", "value": 1, "more": 2},
        {"type": "gt", "key": "k", "value": True},
        {"type": "in", "key": "k", "value": 1},
        {"type": "in", "key": "k", "value": []},
        {"type": "and", "filters": []},
        {"type": "and", "filters": [None]},
        {"type": "or", "filters": [eq()] * (COMPARISONS_MAX + 1)},
        {"type": "eq", "key": "k", "value": "x" * 600},
        DEEP,
    ],
)
def test_what_is_none_is_refused_with_what_is_wrong(given: Any) -> None:
    with pytest.raises(BadInput, match="filters"):
        parse_filter(given)


def test_attributes_have_bounds() -> None:
    assert check_attributes({"a": 1, "b": "x", "c": False}) == {"a": 1, "b": "x", "c": False}
    for given in ({"": 1}, {"x" * 65: 1}, {"a": "x" * 513}, {str(n): n for n in range(17)}):
        with pytest.raises(BadInput):
            check_attributes(given)
