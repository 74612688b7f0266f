"""Pages of a branch of items."""

from __future__ import annotations

from typing import Literal

import pytest
from msgspec.structs import replace

from sessions.model.errors import NotFound
from sessions.model.types import Item, ItemId
from tests.support.doors.transport import message
from transport.openai.conversations import ItemPageQuery, branch_items, item_page


def items() -> list[Item]:
    """a - b - c, and d beside c."""
    below = {"a": None, "b": "a", "c": "b", "d": "b"}
    return [
        replace(message(name, name), parent_id=None if parent is None else ItemId(parent))
        for name, parent in below.items()
    ]


def query(limit: int = 20, order: Literal["asc", "desc"] = "asc", after: str | None = None) -> ItemPageQuery:
    return ItemPageQuery(limit=limit, order=order, after=after)


def test_a_branch_is_its_leaf_and_what_lies_above() -> None:
    assert [item.id for item in branch_items(items(), ItemId("c"))] == ["a", "b", "c"]
    assert [item.id for item in branch_items(items(), ItemId("d"), until=lambda item: item.id == "a")] == ["b", "d"]
    assert branch_items(items(), None) == [] and branch_items(items(), ItemId("x")) == []


def test_pages_go_on_behind_the_last_item() -> None:
    branch = branch_items(items(), ItemId("c"))
    first = item_page(branch, query(limit=2))
    assert (first["first_id"], first["last_id"], first["has_more"]) == ("a", "b", True)
    last = item_page(branch, query(limit=2, after="b"))
    assert (last["first_id"], last["has_more"]) == ("c", False)
    newest = item_page(branch, query(order="desc", limit=1))
    assert newest["first_id"] == "c"
    assert item_page([], query())["first_id"] is None
    with pytest.raises(NotFound):
        item_page(branch, query(after="d"))
