"""Reads the item tree: what blocks a branch, which response is last in its queue, which question an answer belongs to.

Pure functions of a `State`; none changes it.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import UNSET, UnsetType

from sessions.machine.state import Queued, State
from sessions.model.errors import Conflict, NotFound
from sessions.model.types import Item, ItemId, ResponseId

_BUSY = {
    "response_in_progress": "A response on this branch is in progress; wait for its end, or send `queue: true`.",
    "tools_pending": "A turn on this branch waits for tools: send your outputs, or `queue: true`, or cancel it.",
}


def busy_conflict(code: str) -> Conflict:
    return Conflict(code, _BUSY[code], retryable=True, retry_after_ms=250)


def parent_of(state: State, parent_id: ItemId | None | UnsetType) -> ItemId | None:
    """Returns the item that a command names as its parent; the newest item if it names none. Raises NotFound."""
    if parent_id is UNSET:
        return state.newest
    if parent_id is not None and parent_id not in state.items:
        raise NotFound("item_not_found", f"There is no item {parent_id!r} in this session.", param="parent_id")
    return parent_id


def branch(state: State, leaf: ItemId | None) -> list[Item]:
    """Returns the items from the root to `leaf`."""
    return list(reversed(list(ancestors(state, leaf))))


def ancestors(state: State, leaf: ItemId | None) -> Iterator[Item]:
    """Yields the items from `leaf` to the root."""
    while leaf is not None:
        item = state.items[leaf]
        yield item
        leaf = item.parent_id


def blocker(
    state: State, parent: ItemId | None, *, implied: bool, answering: ResponseId | None = None
) -> tuple[ResponseId, str] | None:
    """Returns the response that must end before the branch that ends in `parent` can be continued, and the code of the
    reason (an open response, or a turn whose tools run); None if the branch is free. The turn of `answering`, whose
    tool outputs the caller has, does not block.

    If the client named `parent`, an open response below it does not block, because the new one is its sibling. If the
    client named none (`implied`), such a response blocks when nothing of it is written yet: the client means to
    continue after it.
    """
    if not state.open and not state.awaiting and not state.queue:
        return None
    if implied:
        for open_ in state.open.values():
            if not open_.drafts and open_.body.parent_id == parent:
                return last_in_line(state, open_.id), "response_in_progress"
    awaiting = {waiting.response_id: waiting.last for waiting in state.awaiting.values()}
    if answering is not None:
        del awaiting[answering]
        if not awaiting and not state.open:
            return None
    waiting_tools = {last: response_id for response_id, last in awaiting.items()}
    at: ItemId | None = parent
    while at is not None:
        made_by = state.made_by.get(at)
        if made_by is not None and made_by in state.open:
            return last_in_line(state, made_by), "response_in_progress"
        if made_by is not None and made_by in awaiting:
            return last_in_line(state, made_by), "tools_pending"
        if at in waiting_tools:
            return last_in_line(state, waiting_tools[at]), "tools_pending"
        at = state.items[at].parent_id
    return None


def last_in_line(state: State, response_id: ResponseId) -> ResponseId:
    """Returns the last response in the queue behind a response, for which a new one must wait; the response itself if
    none waits."""
    for waiting in state.queue:
        if waiting.after == response_id:
            response_id = waiting.body.id
    return response_id


def steering_behind(state: State, response_id: ResponseId) -> Queued | None:
    """Returns the steering message that waits for a response, None if there is none. Steering messages come before all
    others that wait for it."""
    return next((waiting for waiting in state.queue if waiting.after == response_id and waiting.steers), None)


def question(state: State, item_id: ItemId) -> ItemId | None:
    """Returns the item that the answer at `item_id` belongs to. A command to respond that names no parent regenerates
    the answer to that item."""
    at: ItemId | None = item_id
    while at is not None:
        made_by = state.made_by.get(at)
        if made_by is None or made_by in state.open or made_by in state.awaiting:
            return at
        at = state.items[at].parent_id
    return None
