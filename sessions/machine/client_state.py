"""Shows a session's state to a client that has none of it: what a new device needs.

Pure. No reader gets anything with a snapshot that is not shown here.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import UNSET

from sessions.machine.state import Awaiting, State

_SHOWN_OF_ANSWER: Final = ("status", "model", "created_at", "completed_at", "usage")


def _approvals(waiting: Awaiting) -> dict[str, Any]:
    """Returns the ids of calls that wait for approval, as a part of the client's `state` object; an empty object if
    there are none."""
    calls = waiting.server.calls.values() if waiting.server is not None else ()
    pending = [call.call_id for call in calls if call.approval == "asked" and call.call_id in waiting.missing]
    return {"approval": pending} if pending else {}


def client_state(state: State) -> dict[str, Any]:
    """Returns the `state` object of PROTOCOL.md §1: everything that a new device needs, retractions applied."""
    drafted = {draft.item.id for open_ in state.open.values() for draft in open_.drafts if not draft.done}
    info = state.info
    shown: dict[str, Any] = {
        "items": [item for item in state.items.values() if item.id not in drafted],
        "open": [
            {
                "response_id": open_.id,
                "parent_id": open_.body.parent_id,
                "sequence_number": open_.sequence,
                "output": [draft.so_far() for draft in open_.drafts],
            }
            for open_ in state.open.values()
        ],
        "queued": [
            {"response_id": waiting.body.id, "after": waiting.after, "item": waiting.item} for waiting in state.queue
        ],
        "awaiting": [
            {"response_id": waiting.response_id, "missing": list(waiting.missing), **_approvals(waiting)}
            for waiting in state.awaiting.values()
        ],
        "made_by": dict(state.made_by),
        "incomplete": {id: answer.reason for id, answer in state.answers.items() if answer.reason},
        "head": state.newest,
        "title": info.title if info is not None else None,
        "metadata": info.metadata if info is not None else {},
        "model": info.model if info is not None else "",
        "instructions": info.instructions if info is not None else None,
        "tools": list(info.tools) if info is not None else [],
        "temperature": None if info is None or info.temperature is UNSET else info.temperature,
        "max_output_tokens": None if info is None or info.max_output_tokens is UNSET else info.max_output_tokens,
        "created_at": info.created_at if info is not None else None,
        "answers": {
            id: {name: getattr(answer, name) for name in _SHOWN_OF_ANSWER}
            for id, answer in state.answers.items()
            if answer.status
        },
    }
    if info is not None and info.context_policy is not UNSET:
        shown["context_policy"] = info.context_policy
    if info is not None and info.compact_threshold is not UNSET:
        shown["compact_threshold"] = info.compact_threshold
    if info is not None and info.knowledge is not UNSET:
        shown["knowledge"] = info.knowledge
    if state.compactions:
        shown["compactions"] = [
            {
                "summary": each.summary,
                "model": each.model,
                "items": each.count,
                "read_item_id": each.read,
                "tokens_before": each.tokens_before,
                "tokens_after": each.tokens_after,
            }
            for each in state.compactions.values()
        ]
    if state.pinned:
        shown["pinned"] = list(state.pinned)
    if state.feedback:
        shown["feedback"] = [
            {"response_id": id, "by": by, "rating": feedback.rating, "reason": feedback.reason, "at": feedback.at}
            for id, ratings in state.feedback.items()
            for by, feedback in ratings.items()
        ]
    if state.reviews:
        shown["reviews"] = [
            {
                "review_id": review_id,
                "category": review.category,
                "response_id": review.response_id,
                "appealed": review.appealed,
                "outcome": review.outcome,
            }
            for review_id, review in state.reviews.items()
        ]
    return shown
