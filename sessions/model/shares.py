"""Shares: links with which anybody may read one branch of a conversation, as it was when it was shared.

A share is a row beside the log: the session, the item that its branch ends in, and the hash of a token. The token has
256 bits, is shown once, and is stored nowhere; so a stolen database has no link. Who has it reads without a key, until
the row is deleted by somebody who may command the session, or the session is deleted or purged.

It is a snapshot and not live, because a link is passed on: later messages need another share. Text that was retracted
since is not in it, because it is read from the present log.

Does not know who may share (`sessions.model.authorization`), how rows are stored, nor what a reader is shown.
"""

from __future__ import annotations

import hashlib
from typing import Final, NewType, Protocol

import msgspec

from sessions.model.audit import Audited
from sessions.model.errors import Limited, NotFound
from sessions.model.types import ItemId, SessionKey, UnixMs

ShareId = NewType("ShareId", str)

TOKEN_BYTES: Final = 32
SHARES_MAX: Final = 32  # of one session


class ShareLink(msgspec.Struct, frozen=True, kw_only=True):
    id: ShareId
    key: SessionKey
    token_hash: bytes
    item_id: ItemId  # the last item of the branch
    offset: int  # the log's end when it was shared
    created_at: UnixMs
    created_by: str  # the principal's id


class ShareStore(Protocol):
    """The share links of a journal. All methods raise Unavailable; those that write also OutcomeUnknown. A change and
    its audit row are written together."""

    async def add(self, share: ShareLink, audit: Audited) -> None:
        """Adds a share. Raises Limited beyond `SHARES_MAX`, NotFound if the session is purged."""
        ...

    async def of_session(self, key: SessionKey) -> list[ShareLink]:
        """Returns a session's shares, newest first."""
        ...

    async def find(self, token_hash: bytes) -> ShareLink | None: ...

    async def remove(self, key: SessionKey, share_id: ShareId, audit: Audited) -> bool:
        """Removes a share. Returns False if there was none."""
        ...


def token_hash_of(token: str) -> bytes:
    """Returns the hash that is stored for a token. A plain hash is enough, because nobody can try out 256 bits."""
    return hashlib.sha256(token.encode()).digest()


def share_not_found() -> NotFound:
    """Returns the error for a share that is unknown, revoked, deleted or switched off. It is the same for all these
    reasons."""
    return NotFound(
        "share_not_found", "There is nothing shared here, or no longer: ask whoever sent you the link for a new one."
    )


def too_many_shares() -> Limited:
    return Limited("quota_exceeded", f"A session has {SHARES_MAX} shares at most: revoke one first.", retryable=False)
