"""Pages of lists, as every route of ours writes them: `object`, `data`, `has_more`, `last_id`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


def page_of(
    rows: Sequence[T], limit: int, *, show: Callable[[T], Any], cursor: Callable[[T], Any], **more: Any
) -> dict[str, Any]:
    """Returns the first `limit` rows as a list object. `rows` has one more if another page follows. `cursor` makes the
    `last_id`, which the next request sends as `after`."""
    page = rows[:limit]
    return {
        "object": "list",
        **more,
        "data": [show(row) for row in page],
        "has_more": len(rows) > limit,
        "last_id": cursor(page[-1]) if page else None,
    }
