"""OpenAI's compaction items: summaries of ours, by names that clients send back in the place of what they stand for.

`encrypted_content` is opaque to clients and no secret: it names the session and the summary, which are looked up in the
caller's own tenant and by its rights, as everything is. So it is worth nothing to anybody else, and a summary that was
voided or undone is not found. What a client resends behind the item is found again in the session, so that it is
neither stored nor computed twice. Pure.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sessions.model.errors import BadInput, NotFound
from sessions.model.types import SESSION_ID_PATTERN, Item, ItemId, Json, Message, SessionId
from transport.openai import responses_render
from transport.openai.conversations import branch_items
from transport.openai.item_references import ResolvedInput, as_input, is_same_input
from transport.openai.request_models import InputItem

COMPACTION: Final = "compaction"
_SESSION: Final = re.compile(SESSION_ID_PATTERN)


def compaction_item(session: SessionId, compaction_id: ItemId) -> dict[str, Json]:
    content = base64.urlsafe_b64encode(f"{compaction_id}.{session}".encode()).decode()
    return {"id": compaction_id, "type": COMPACTION, "encrypted_content": content}


def last_compaction(given: str | Sequence[InputItem] | None) -> int | None:
    """Returns the index of an input's last compaction item, which stands for everything before it; None if none."""
    if given is None or isinstance(given, str):
        return None
    return next((at for at in range(len(given) - 1, -1, -1) if given[at].type == COMPACTION), None)


def place_of(item: InputItem, at: int) -> tuple[SessionId, ItemId]:
    """Returns the session and the summary that a compaction item, `input[at]`, names. Raises BadInput."""
    try:
        named = base64.b64decode(item.encrypted_content or "", altchars=b"-_", validate=True).decode("ascii")
    except (binascii.Error, ValueError):
        named = ""
    compaction_id, _, session = named.partition(".")
    if not compaction_id.startswith("cmp_") or not _SESSION.match(session):
        raise BadInput(
            "invalid_request",
            "This is no compaction item of this server: send back what `/v1/responses/compact` gave.",
            param=f"input[{at}].encrypted_content",
        )
    return SessionId(session), ItemId(compaction_id)


def compaction_not_found(at: int) -> NotFound:
    return NotFound(
        "compaction_not_found",
        "This compaction is not there any more: something that it summarised was deleted, or it was undone. Compact"
        " again.",
        param=f"input[{at}]",
    )


def behind_compaction(
    given: Sequence[InputItem], at: int, session: SessionId, compaction_id: ItemId, state: Mapping[str, Any]
) -> ResolvedInput:
    """Resolves an input with a compaction item at index `at`: finds the item of the session where the conversation
    continues, and the input that is new there. Raises NotFound for a summary that is gone."""
    summaries = state.get("compactions", ())
    leaf = next((summary["read_item_id"] for summary in summaries if summary["summary"].id == compaction_id), None)
    if leaf is None:
        raise compaction_not_found(at)
    below: dict[ItemId | None, list[Item]] = {}
    for item in state["items"]:
        below.setdefault(item.parent_id, []).append(item)
    rest = list(given[at + 1 :])
    while rest:
        same_item = next((item for item in below.get(leaf, ()) if is_same_input(as_input(item), rest[0])), None)
        if same_item is None:
            break
        leaf = same_item.id
        del rest[0]
    return ResolvedInput(rest, session, leaf)


def compacted(
    name: str, session: SessionId, event: Mapping[str, Any], state: Mapping[str, Any], *, at: int
) -> dict[str, Json]:
    """Returns the answer of `/v1/responses/compact` from the summary's `event` and the session's state. `at` is the
    time of the summary in unix ms."""
    items = branch_items(state["items"], event["read_item_id"])
    users = [item for item in items if isinstance(item, Message) and item.role == "user"]
    return {
        "id": name,
        "object": "response.compaction",
        "created_at": at // 1000,
        "output": [
            *(responses_render.item(item) for item in users),
            compaction_item(session, event["summary"].id),
        ],
        "usage": responses_render.usage(event["usage"]),
    }
