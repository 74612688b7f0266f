"""Keeps what was agreed to of MCP servers' tools in the journal's store, so that it holds over restarts and for all
replicas: the digests of tools, by their names.

What somebody agrees to over the API stands in the store too, and is in force within `LOOK_S`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec
import structlog

from inference.tools.mcp.catalogue import Listing
from sessions.model.errors import SessileError
from sessions.model.types import TenantId, UnixMs
from sessions.tool_records import BODY_BYTES_MAX, ToolListing, ToolPin, ToolRecord, ToolRecordKind, ToolRecordStore

log = structlog.get_logger(__name__)

LOOK_S: Final = 2.0
_WORDS_MAX: Final = 512  # of a tool's description where people read it


class StoredPins:
    """Agreements in the store that all replicas share. Coroutines raise Unavailable if the store does not answer; new
    tools are not shown then."""

    def __init__(
        self, store: ToolRecordStore, now_ms: Callable[[], UnixMs], exists: Callable[[str, str], Awaitable[bool]]
    ) -> None:
        """`exists` returns whether there is still an MCP server with an owner and a label."""
        self._store = store
        self._now_ms = now_ms
        self._exists = exists

    async def agreed(self, owner: str, label: str) -> Mapping[str, str] | None:
        """Returns the digests that somebody has agreed to; None for a server of which nothing is stored."""
        for record in await self._store.records("pin", TenantId(owner)):
            if record.name == label:
                return msgspec.json.decode(record.body, type=ToolPin).digests
        return None

    async def remember(self, owner: str, label: str, digests: Mapping[str, str]) -> None:
        known = await self.agreed(owner, label) or {}
        pin = ToolPin(digests={**digests, **known})  # of two replicas that are first, one is
        await self._put("pin", owner, label, msgspec.json.encode(pin).decode())

    async def listed(self, owner: str, label: str, listing: Listing) -> None:
        """Stores a server's listing, for people to see and agree to."""
        waiting = {name: (tool.digest, tool.description[:_WORDS_MAX]) for name, tool in listing.waiting.items()}
        kept = ToolListing(shown=tuple(listing.shown), held=dict(listing.held), waiting=waiting)
        body = msgspec.json.encode(kept).decode()
        if len(body) > BODY_BYTES_MAX:
            body = msgspec.json.encode(ToolListing(shown=tuple(listing.shown))).decode()
        await self._put("listing", owner, label, body)

    async def follow(self, changed: Callable[[str, str], None]) -> None:
        """Calls `changed` with owner and label of an MCP server whenever somebody has agreed to one of its tools. Runs
        until cancelled."""
        seen: dict[tuple[TenantId, str], str] | None = None
        while True:
            try:
                records = await self._store.records("pin")
            except SessileError as error:
                log.warning("tool_agreements_unavailable", error=error.code)
            else:
                now = {(record.tenant, record.name): record.body for record in records}
                for (tenant, label), body in now.items():
                    if seen is not None and seen.get((tenant, label)) != body:
                        changed(tenant, label)
                seen = now
            await asyncio.sleep(LOOK_S)

    async def _put(self, kind: ToolRecordKind, owner: str, label: str, body: str) -> None:
        record = ToolRecord(tenant=TenantId(owner), kind=kind, name=label, body=body, at=self._now_ms())
        try:
            await self._store.put(record)
        finally:  # a put that is cancelled may be stored
            if not await self._exists(owner, label):  # asked last: a deletion ends by removing the records
                await self._store.remove(record)
