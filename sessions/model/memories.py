"""Memories: short texts with which an end user's later conversations begin, in the user's own words.

The user, or a client for them, writes each of them; nothing is taken from conversations automatically. A session that
the user creates gets those that exist at that moment, behind its instructions. It keeps them: they are in
`session.created`, so the beginning of its prompts never changes, and later edits are for later sessions.

Does not know who may change them (`sessions.model.authorization`), nor how rows are stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NewType

import msgspec

from sessions.model.errors import BadInput, Limited, NotFound
from sessions.model.types import Principal, TenantId, UnixMs

MemoryId = NewType("MemoryId", str)

TEXT_MAX: Final = 280  # code points of one; all of a user together must leave room in a window
MEMORIES_MAX: Final = 32  # of one user
HEADING: Final = "What the user wants you to remember:"


class UserMemory(msgspec.Struct, frozen=True, kw_only=True):
    id: MemoryId
    tenant: TenantId
    user: str
    text: str
    created_at: UnixMs
    updated_at: UnixMs


def owner_of(principal: Principal) -> str:
    """Returns the end user whose memories a principal sees and changes. Raises BadInput for a key without an end
    user."""
    if principal.user is None:
        raise BadInput(
            "user_required",
            "Memories are an end user's: use a key of theirs, or name them with X-Sessile-User.",
            param="user",
        )
    return principal.user


def with_memories(instructions: str | None, memories: Sequence[str]) -> str | None:
    """Returns a session's instructions followed by its memories, as its model sees them; None if it has neither."""
    if not memories:
        return instructions
    written = "\n".join([HEADING, *(f"- {' '.join(text.split())}" for text in memories)])
    return f"{instructions}\n\n{written}" if instructions else written


def memory_not_found(memory_id: str) -> NotFound:
    return NotFound("memory_not_found", f"There is no memory {memory_id!r}.", param="memory_id")


def too_many_memories() -> Limited:
    return Limited("quota_exceeded", f"A user has {MEMORIES_MAX} memories at most: delete one first.", retryable=False)
