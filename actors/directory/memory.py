"""The directory of one process, and of the simulator's cluster under virtual time.

One `DirectoryState` stands for the server, one `MemoryDirectory` per process for the connection to it: each handle has
its own closed flag, its own idea of the newest version, and its own `Faults`. Time is the running loop's `time()`.

Without faults no call suspends, so none can be cancelled half way. With them, a call that is cancelled while
`request` waits has done nothing, and one cancelled while `reply` waits has done everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from actors.directory.common import LEASE_TTL_S, Activations, Announcement, Freshness
from actors.directory.rules import DirectoryState
from sessions.model.errors import Unavailable
from sessions.model.types import ReplicaId, SessionKey
from sessions.ports import Claim, Member, Owner, View


class Faults(Protocol):
    """Injected faults between a handle and its store. Both methods may wait or raise, and are given the operation's
    name.

    `request` that raises Unavailable refuses the call; OutcomeUnknown loses it before it happened. `reply` that
    raises OutcomeUnknown loses the answer of a call that did happen (Unavailable for one that only reads).
    """

    async def request(self, operation: str) -> None: ...

    async def reply(self, operation: str) -> None: ...


class MemoryDirectory:
    """The directory in memory; implements `actors.directory.Leases`."""

    def __init__(
        self,
        store: DirectoryState | None = None,
        *,
        lease_ttl_s: float = LEASE_TTL_S,
        faults: Faults | None = None,
    ) -> None:
        self._store = DirectoryState() if store is None else store
        self._ttl_s = lease_ttl_s
        self._faults = faults
        self._freshness = Freshness()
        self._generations: dict[tuple[ReplicaId, str], int] = {}
        self._activations: list[Activations] = []
        self._open = False

    async def open(self) -> None:
        self._open = True

    async def close(self) -> None:
        """Ends every stream of activations; what is stored stays. Idempotent."""
        self._open = False
        for stream in self._activations:
            stream.close()
        self._activations.clear()

    async def announce(self, member: Member) -> Announcement:
        await self._request("announce")
        identity = (member.replica, member.incarnation)
        try:
            answer, generation = self._store.announce(
                member,
                generation=self._generations.get(identity, 0),
                seen=self._freshness.seen,
                ttl=self._ttl_s,
                now=_now(),
            )
        finally:
            await self._reply("announce")
        self._generations[identity] = generation
        self._freshness.record_returned(answer.version)
        return answer

    async def withdraw(self, replica: ReplicaId, incarnation: str) -> None:
        await self._request("withdraw")
        # A replica that joins again under this name joins anew: nothing that was claimed before counts for it.
        self._generations.pop((replica, incarnation), None)
        self._store.withdraw(replica, incarnation, now=_now())
        await self._reply("withdraw")

    async def view(self) -> View:
        await self._request("view")
        view = self._store.view(seen=self._freshness.seen, now=_now())
        await self._reply("view")
        self._freshness.record_returned(view.version)
        return view

    async def news(self) -> None:
        await self._freshness.news()

    async def locate(self, key: SessionKey) -> Owner | None:
        await self._request("locate")
        owner = self._store.locate(key, now=_now())
        await self._reply("locate")
        return owner

    async def claim(self, key: SessionKey, owner: Owner, *, instead_of: Owner | None = None) -> Claim:
        await self._request("claim")
        try:
            claim = self._store.claim(key, owner, instead_of=instead_of, now=_now())
        except Unavailable:
            self._freshness.lease_missing()
            raise
        finally:
            await self._reply("claim")
        return claim

    async def release(self, key: SessionKey, owner: Owner) -> None:
        await self._request("release")
        self._store.release(key, owner)
        await self._reply("release")

    async def watch(self, gateway: str, keys: Sequence[SessionKey]) -> None:
        await self._request("watch")
        self._store.watch(gateway, keys, ttl=self._ttl_s, now=_now())
        await self._reply("watch", tells_version=False)

    async def watchers(self, key: SessionKey) -> list[str]:
        await self._request("watchers")
        gateways = self._store.watchers(key, now=_now())
        await self._reply("watchers", tells_version=False)
        return gateways

    async def activated(self, key: SessionKey, owner: Owner) -> None:
        await self._request("activated")
        self._store.activated(key, owner, now=_now())
        await self._reply("activated", tells_version=False)

    def activations(self, gateway: str) -> Activations:
        self._check_open()
        stream = self._store.listen(gateway)
        self._activations.append(stream)
        return stream

    # -- calls --------------------------------------------------------------------------------------

    async def _request(self, operation: str) -> None:
        self._check_open()
        if self._faults is not None:
            await self._faults.request(operation)
            self._check_open()

    async def _reply(self, operation: str, *, tells_version: bool = True) -> None:
        version = self._store.announced_version  # as of the call, however late the answer comes
        if self._faults is not None:
            await self._faults.reply(operation)
        if tells_version:
            self._freshness.record_answer(version)

    def _check_open(self) -> None:
        if not self._open:
            raise Unavailable("directory_closed", "The session directory is closed.")


def _now() -> float:
    return asyncio.get_running_loop().time()
