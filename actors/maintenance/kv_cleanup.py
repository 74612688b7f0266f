"""Releases KV of deleted sessions: a replica may hold some of every session that it ever had, or was to take in.

At once: the replica that deletes a session notifies the others over their links. In case one was not reached, each
replica also looks up, at every sweep, some of the sessions that its engine holds KV of in the journal.

Invariant: KV is released only if the journal confirms the deletion. Bounds: `PAGE` questions to the journal in a sweep,
one after the other; `ANNOUNCE_TIMEOUT_S` for reaching a replica. A session that is in memory here is not looked up: its
actor knows.
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from actors.hosting.runtime import Runtime
from actors.peer.links import LinkDown, Links
from sessions.model.errors import Overloaded
from sessions.model.types import SessionKey
from sessions.ports import Engine, Journal, Member, View

log = structlog.get_logger(__name__)

PAGE: Final = 50
ANNOUNCE_TIMEOUT_S: Final = 1.0


class KVCleanup:
    """Releases the KV that one replica's engine has of deleted sessions."""

    def __init__(self, runtime: Runtime, journal: Journal, engine: Engine) -> None:
        self._runtime = runtime
        self._journal = journal
        self._engine = engine
        self._unseen: list[SessionKey] = []  # keys that this pass has yet to look up

    async def sweep(self) -> int:
        """Looks up the next page of sessions; returns how many had KV that was released. Raises Unavailable."""
        if not self._unseen:
            self._unseen = [key for key in sorted(self._engine.held_sessions()) if not self._runtime.present(key)]
        page, self._unseen = self._unseen[:PAGE], self._unseen[PAGE:]
        return sum([await self.remove_if_deleted(key) for key in page])

    async def remove_if_deleted(self, key: SessionKey) -> bool:
        """Releases a session's KV if the session is deleted or purged; returns whether it is. Raises Unavailable."""
        head = await self._journal.head(key)
        if head is not None and head.deleted_at is None:
            return False
        await self._engine.release(key)
        return True


async def announce_deletion(key: SessionKey, me: Member, view: View, links: Links) -> None:
    """Informs the other replicas that may have KV of a session that it is deleted: those that sessions can move to from
    here, and those of other models. Replicas that cannot be reached find out by their own sweeps."""
    alike = [
        member
        for member in view.members
        if member.replica != me.replica and (member.fingerprint == me.fingerprint or member.model != me.model)
    ]
    await asyncio.gather(*(_announce_to(key, member, links) for member in alike))


async def _announce_to(key: SessionKey, member: Member, links: Links) -> None:
    try:
        async with asyncio.timeout(ANNOUNCE_TIMEOUT_S):
            (await links.get(member)).deleted(key)
    except (LinkDown, Overloaded, TimeoutError) as error:
        about = {"session": key.session, "tenant": key.tenant, "to": member.replica}
        log.info("deletion_announcement_failed", **about, error=str(error))
