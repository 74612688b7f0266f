"""Lists of items as OpenAI's clients page through them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

from fastapi import Depends, Query, Request
from pydantic import BaseModel

from sessions.model.errors import NotFound
from sessions.model.types import Item, ItemId, Json
from transport.openai import responses_render
from transport.openai.left_out import LOGPROBS, include_left_out
from transport.openai.output_logprobs import OutputLogprobs
from transport.openai.unknown_parameters import leave_out

Include = Annotated[list[str] | None, Query(alias="include[]")]
"""The query parameter `include`, spelled as OpenAI's SDKs write a list."""


class ItemPageQuery(BaseModel):
    limit: int
    order: Literal["asc", "desc"]
    after: str | None
    logprobs: bool = False


def _page(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Literal["asc", "desc"] = "desc",
    after: Annotated[str | None, Query(max_length=128)] = None,
    include: Annotated[list[str] | None, Query()] = None,
    bracketed: Include = None,
) -> ItemPageQuery:
    shown = (*(include or ()), *(bracketed or ()))
    leave_out(request, include_left_out(shown))
    return ItemPageQuery(limit=limit, order=order, after=after, logprobs=LOGPROBS in shown)


ItemPageParams = Annotated[ItemPageQuery, Depends(_page)]


def branch_items(
    items: Sequence[Item], leaf: ItemId | None, *, until: Callable[[Item], bool] = lambda _: False
) -> list[Item]:
    """Returns the branch that ends in `leaf`, oldest item first, without the last item for which `until` holds and
    everything before it."""
    known = {item.id: item for item in items}
    branch: list[Item] = []
    while leaf is not None and leaf in known and not until(known[leaf]):
        branch.append(known[leaf])
        leaf = known[leaf].parent_id
    return branch[::-1]


def item_page(items: Sequence[Item], page: ItemPageQuery, logprobs: OutputLogprobs | None = None) -> dict[str, Json]:
    """Returns a page of a branch with its texts' log probabilities. Raises NotFound for an unknown `after`."""
    ordered = list(items) if page.order == "asc" else list(items)[::-1]
    if page.after is not None:
        places = [index for index, item in enumerate(ordered) if item.id == page.after]
        if not places:
            raise NotFound("item_not_found", f"There is no item {page.after!r} here.", param="after")
        ordered = ordered[places[0] + 1 :]
    known = OutputLogprobs() if logprobs is None else logprobs
    data: list[dict[str, Any]] = [responses_render.item(item, known.of(item.id)) for item in ordered[: page.limit]]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": len(ordered) > page.limit,
    }
