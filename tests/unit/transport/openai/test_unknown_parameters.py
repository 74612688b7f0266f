"""What is taken out of a body, and how the answer says so."""

from __future__ import annotations

from typing import Any

from fastapi import Request

from transport.openai.unknown_parameters import NAMES_MAX, leave_out, take_out, warning


def extra(*path: str | int) -> dict[str, Any]:
    return {"type": "extra_forbidden", "loc": ("body", *path)}


def test_fields_that_nobody_knows_are_taken_out_wherever_they_are() -> None:
    body = {"a": 1, "in": {"b": 2, "c": 3}, "list": [{"d": 4}]}
    problems = [extra("a"), extra("in", "b"), extra("list", 0, "d"), extra("list", 7, "d"), extra("no", "e")]
    assert take_out(body, [*problems, {"type": "int_type", "loc": ("body", "in")}]) == ["a", "in.b", "list.0.d"]
    assert body == {"in": {"c": 3}, "list": [{}]}


def test_the_warning_is_a_header_whatever_the_names_are() -> None:
    request = Request({"type": "http", "headers": []})
    assert warning(request) == {}
    leave_out(request, ['x"\r\ny', "ü", *(f"n{number}" for number in range(NAMES_MAX))])
    (header,) = warning(request).values()
    assert header.startswith('299 - "Parameters were ignored: x???y, ?, n0') and header.endswith(', ..."')
    assert header.isascii() and header.isprintable()
