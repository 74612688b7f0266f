"""Conversations that go on while something is done to the cluster, each read by every device, and their verdict.

The first device of a load speaks, the others read. A turn ends when its end was told; when an answer was lost with the
journal's newest part (`restored`), the device is told so by a reset, and the conversation goes on with the next turn.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any, Protocol

from sessions.ports import Journal
from testbed.chaos.cluster import key_of
from testbed.chaos.device import Device, device


class LoadTarget(Protocol):
    """A cluster as a load sees it."""

    @property
    def urls(self) -> Sequence[str]: ...

    @property
    def journal(self) -> Journal: ...

    @property
    def key(self) -> str:
        """The API key; empty where it lets everybody in."""
        ...

    async def findings(
        self, devices: Iterable[Device], sessions: Iterable[str], *, restored: bool = False
    ) -> list[str]: ...


class Load:
    """`sessions` conversations on a cluster; `device` speaks in all of them."""

    def __init__(self, cluster: LoadTarget, devices: Sequence[Device], *, tokens: int) -> None:
        self.cluster = cluster
        self.devices = list(devices)
        self.device = devices[0]
        self.sessions: list[str] = []
        self.turns = 0
        self.restored = False
        self._tokens = tokens
        self._talks: list[asyncio.Task[None]] = []
        self._enough = asyncio.Event()

    async def begin(self, sessions: int) -> None:
        """Returns when every conversation has its first words, on every device."""
        self.sessions = [await self.device.create() for _ in range(sessions)]
        for other in self.devices[1:]:
            for session in self.sessions:
                await other.read(session)
        self._talks = [asyncio.create_task(self._talk(session)) for session in self.sessions]
        await self.grows(2)

    async def _talk(self, session: str) -> None:
        cursor = self.device.cursors[session]
        number = 0
        while not self._enough.is_set():
            number += 1
            resets = cursor.resets
            response = await self.device.say(session, f"Tell me story number {number}.", tokens=self._tokens)
            await self.device.until(lambda r=response, n=resets: r in cursor.ended or cursor.resets > n, 90.0)  # type: ignore[misc]
            self.turns += 1

    async def grows(self, by: int, limit_s: float = 60.0) -> None:
        """Waits until every device has been told so many more pieces of text in every conversation."""
        growing = asyncio.gather(
            *(each.grows(session, by, limit_s) for each in self.devices for session in self.sessions)
        )
        try:
            waiting: list[asyncio.Future[Any]] = [growing, *self._talks]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for talk in self._talks:
                if talk.done():  # before `finish` only by failing: its reason is better than a time-out
                    talk.result()
            await growing
        finally:
            growing.cancel()
            await asyncio.gather(growing, return_exceptions=True)

    async def finish(self) -> list[str]:
        """Ends the conversations with their present turns, waits until every device has all of it; the verdict."""
        self._enough.set()
        await asyncio.gather(*self._talks)
        journal = self.cluster.journal
        for session in self.sessions:
            head = await journal.head(key_of(session))
            assert head is not None
            while head.open:  # lost to the journal and begun again: it ends without anybody waiting for it
                await self.device.grows(session, 1)
                head = await journal.head(key_of(session))
                assert head is not None
            for each in self.devices:
                cursor = each.cursors.get(session)
                if cursor is None:
                    continue
                await each.until(lambda c=cursor, h=head: (c.epoch, c.position) == (h.epoch, h.top), 30.0)  # type: ignore[misc]
        return await self.cluster.findings(self.devices, self.sessions, restored=self.restored)

    def silences(self) -> list[float]:
        """The longest pause within an answer, of each conversation, as the device that speaks saw it. Seconds."""
        return [silence(self.device, session) for session in self.sessions]

    def moves(self) -> list[str]:
        """Why sessions changed hands."""
        return [cause for session in self.sessions for _, cause in self.device.cursors[session].moves]

    async def stop(self) -> None:
        self._enough.set()
        for talk in self._talks:
            talk.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await talk


def silence(of: Device, session: str) -> float:
    deltas = of.cursors[session].deltas
    return max((b.at - a.at for a, b in pairwise(deltas) if a.response == b.response), default=0.0)


@asynccontextmanager
async def load(cluster: LoadTarget, *, sessions: int, tokens: int = 60) -> AsyncIterator[Load]:
    """A device for each gateway, and conversations that go on until `finish`."""
    async with contextlib.AsyncExitStack() as stack:
        # Each prefers another gateway and may use all of them.
        urls = cluster.urls
        devices = [
            await stack.enter_async_context(device(*urls[n:], *urls[:n], seed=n, key=cluster.key))
            for n in range(len(urls))
        ]
        made = Load(cluster, devices, tokens=tokens)
        try:
            await made.begin(sessions)
            yield made
        finally:
            await made.stop()
