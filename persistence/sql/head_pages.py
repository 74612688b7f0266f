"""Pages of heads, each head decoded by itself: one row that cannot be read does not fail the page that it is in.

Title and metadata of a head, which people wrote, are stored as a body; its user, its model and whether a turn is open
are columns. A head whose body is damaged, or whose key is destroyed, is returned without a title: it is listed, swept,
erased and deleted like any other. That holds for one that is read or granted alone, too. Reads of its log still raise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from persistence.codec import Codec, HeadBody, KeyNotLoaded, Row, decode_head_body, encode_head_body, unreadable
from sessions.model.errors import Internal
from sessions.model.journal_types import Head
from sessions.model.types import SessionKey, TenantId

log = structlog.get_logger(__name__)

NO_BODY: Final = encode_head_body(HeadBody())


class _PageCodec:
    """A codec that reads an empty body if the stored one cannot be read. It writes like the codec that it wraps."""

    def __init__(self, codec: Codec, lost: set[tuple[TenantId, str]]) -> None:
        self._codec, self._lost = codec, lost
        self.encode, self.load = codec.encode, codec.load
        self.unreadable: list[SessionKey] = []

    def decode(self, key: SessionKey, row: Row, key_id: str, stored: bytes) -> bytes:
        try:
            if (key.tenant, key_id) in self._lost:
                raise unreadable("head")
            plain = self._codec.decode(key, row, key_id, stored)
            decode_head_body(plain)
        except Internal:
            self.unreadable.append(key)
            return NO_BODY
        return plain


async def read_heads(codec: Codec, decode: Callable[[Codec], list[Head]]) -> list[Head]:
    """Returns the heads of a page. `decode` decodes them with the codec that it is passed, and may be called more than
    once. Raises Unavailable."""
    lost = set[tuple[TenantId, str]]()
    while True:
        page = _PageCodec(codec, lost)
        try:
            heads = decode(page)
        except KeyNotLoaded as needed:
            try:
                await codec.load(needed.tenant, needed.key_id)
            except Internal:  # destroyed, or not this server's
                lost.add((needed.tenant, needed.key_id))
            continue
        if page.unreadable:
            first = page.unreadable[0]
            log.warning("heads_unreadable", count=len(page.unreadable), session=first.session, tenant=first.tenant)
        return heads
