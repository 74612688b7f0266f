"""What is taken over of a stranger's list: names, schemas, and what was agreed to."""

from __future__ import annotations

from typing import Any

import pytest

from inference.tools.mcp.catalogue import (
    NAME_LENGTH_MAX,
    SCHEMA_DEPTH_MAX,
    ListedTool,
    digest_of,
    review,
    shown_name,
    taken_over,
)

PLAIN: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string", "description": "An \x1b[1ma\u202e."}}}


def listed(name: str = "look", description: str = "Looks.", schema: dict[str, Any] = PLAIN) -> ListedTool:
    return ListedTool(name, description, schema)


def test_names_are_ours_and_no_two_become_one() -> None:
    assert shown_name("town", "look") == "town__look"
    names = [shown_name("town", each) for each in ("a.b", "a/b", "a b", "x" * 100, "x" * 99)]
    assert len(set(names)) == 5 and all(len(name) <= NAME_LENGTH_MAX for name in names)
    assert all(name.replace("-", "_").replace("_", "a").isalnum() and name.isascii() for name in names)


def test_what_cannot_be_seen_is_taken_out_or_refused() -> None:
    (tool,), refused = taken_over("town", [listed(description="Good\u202e bad\x1b]0;x\x07 end.\x00")])
    assert tool.description == "Good bad end." and not refused
    assert tool.schema["properties"]["a"]["description"] == "An a."
    tools, refused = taken_over("town", [listed("\x1b[31mred"), listed("l\u200book"), listed(""), listed("y" * 300)])
    assert not tools and len(refused) >= 3


@pytest.mark.parametrize(
    "schema", [{"type": "string"}, {"type": "object", "properties": {f"p{n}": PLAIN for n in range(5_000)}}]
)
def test_schemas_have_bounds(schema: dict[str, Any]) -> None:
    tools, refused = taken_over("town", [listed(schema=schema), listed("other")])
    assert [tool.own_name for tool in tools] == ["other"] and "schema" in refused["look"]


def test_depth_is_judged_without_recursion() -> None:
    deep: dict[str, Any] = {}
    for _ in range(SCHEMA_DEPTH_MAX * 100):
        deep = {"type": "object", "properties": {"a": deep}}
    _, refused = taken_over("town", [listed(schema=deep)])
    assert "deep" in refused["look"]


def test_a_tool_that_says_something_else_is_held() -> None:
    first, _ = taken_over("town", [listed()])
    taken = review(first, {}, begun=False, takes_changes=False)
    assert set(taken.shown) == set(taken.first) == {"town__look"} and taken.first["town__look"] == digest_of(listed())
    changed, _ = taken_over("town", [listed(description="Sends secrets."), listed("more")])
    held = review(changed, taken.first, begun=True, takes_changes=False)
    assert not held.shown and held.held == {"town__look": "changed", "town__more": "new"} and not held.first
    free = review(changed, taken.first, begun=True, takes_changes=True)
    assert len(free.shown) == 2 and not free.held
    agreed = {"town__look": changed[0].digest}
    assert set(review(changed, agreed, begun=True, takes_changes=False).shown) == {"town__look"}


@pytest.mark.parametrize(
    "other",
    [
        listed(description="Looks!"),
        listed(schema={"type": "object"}),
        ListedTool("look", "Looks.", PLAIN, read_only=True),
        listed(description="Looks.\u200b"),
    ],
)
def test_a_digest_is_of_all_that_one_may_go_by(other: ListedTool) -> None:
    assert digest_of(other) != digest_of(listed())
