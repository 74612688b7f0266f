"""Two releases in one cluster of real processes, and sessions that go from one to the other in mid-answer.

`r-new` and `g-new` run this checkout's program, `r-old` and `g-old` that of the release before. A round brings every
conversation to one of the two replicas, kills it, starts it again, and hands all of them back and forth: each move is
from one release to the other.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from actors.directory.valkey import ValkeyDirectory
from actors.peer.links import LinkDown
from sessions.model.errors import SessileError
from testbed.chaos.cluster import TOKEN, ChaosCluster, Member, chaos_cluster, key_of
from testbed.chaos.load import Load, load
from transport.ops.operator_requests import find_member, open_link
from transport.peer.security import PeerSecurity

MEMBERS: Final = ("r-old", "g-old", "r-new", "g-new")
TRIES: Final = 40
PATIENCE_S: Final = 60.0


class MixedRound(msgspec.Struct):
    """Moves by what they were and where from (`handoff r-old`), and what was lost, repeated or changed."""

    victim: str
    moves: Counter[str]
    seconds: float
    findings: list[str]
    longest_silence_s: float


class MixedCluster:
    """The cluster, and its operator."""

    def __init__(self, cluster: ChaosCluster) -> None:
        self.cluster = cluster
        self._security = PeerSecurity(token=TOKEN["SESSILE_PEER_TOKEN"])

    async def bring(self, session: str, to: str) -> bool:
        """Hands a session off, unless it is there already; False then. One that just moved is waited for."""
        problem: Exception | None = None
        for _ in range(TRIES):
            owner = (await self.cluster.owner(session)).name
            if owner == to:
                return False
            try:
                await self._move(session, owner, to)
            except (SessileError, LinkDown, TimeoutError) as error:
                problem = error
                await asyncio.sleep(0.25)
            else:
                return True
        raise AssertionError(f"{session} does not get to {to}: {problem}")

    async def _move(self, session: str, owner: str, to: str) -> None:
        directory = ValkeyDirectory(self.cluster.valkey.url)
        await directory.open()
        try:
            member = find_member(await directory.view(), owner)
        finally:
            await directory.close()
        async with asyncio.timeout(PATIENCE_S), open_link(self._security, member, "mixed") as link:
            await link.move(key_of(session), to)

    async def bring_all(self, running: Load, to: str) -> int:
        return sum(await asyncio.gather(*(self.bring(session, to) for session in running.sessions)))

    async def round(self, victim: str, *, sessions: int, tokens: int) -> MixedRound:
        """Failovers from `victim` to the other replica, and hand-offs both ways, under running conversations."""
        cluster, begun = self.cluster, time.monotonic()
        other = "r-new" if victim == "r-old" else "r-old"
        moves: Counter[str] = Counter()
        async with load(cluster, sessions=sessions, tokens=tokens) as running:
            moves[f"handoff {other}"] += await self.bring_all(running, victim)
            await running.grows(2)
            owned = [session for session in running.sessions if (await cluster.owner(session)).name == victim]
            await cluster.members[victim].kill()
            await running.grows(3, limit_s=90.0)
            left = [session for session in owned if (await cluster.owner(session)).name == other]
            moves[f"failover {victim}"] += len(left)
            await cluster.start(victim)
            moves[f"handoff {other}"] += await self.bring_all(running, victim)
            await running.grows(2)
            moves[f"handoff {victim}"] += await self.bring_all(running, other)
            await running.grows(2)
            silence = max(running.silences())
            findings = await running.finish()
        return MixedRound(victim, moves, time.monotonic() - begun, findings, silence)

    async def replace(self, name: str, tree: Path | None) -> None:
        """Ends a member in order and starts it from another release's tree; None: from this checkout."""
        member: Member = self.cluster.members[name]
        assert member.process is not None
        port = urlsplit(member.url).port if member.role == "gateway" else None
        member.process.send_signal(signal.SIGTERM)
        assert await member.process.wait() == 0, self.cluster.said(name)[-2000:]
        self.cluster.trees.pop(name, None)
        if tree is not None:
            self.cluster.trees[name] = tree
        await self.cluster.start(name, *(("--port", str(port)) if port else ()))


@asynccontextmanager
async def mixed_cluster(tree: Path, *flags: str, members: tuple[str, ...] = MEMBERS) -> AsyncIterator[MixedCluster]:
    """`tree`: of the release before, which makes the journal; this process, and the new members, then migrate it."""
    trees = {name: tree for name in members if name.endswith("-old")}
    async with chaos_cluster(*flags, names=members, trees=trees) as cluster:
        yield MixedCluster(cluster)


async def upgraded_and_back(mixed: MixedCluster, tree: Path, *, sessions: int, tokens: int) -> list[str]:
    """All members of the release before, upgraded one by one in the order of docs/upgrading.md under running
    conversations, and taken back again; what was lost, repeated or changed."""
    order = ("g1-old", "g2-old", "r1-old", "r2-old")
    async with load(mixed.cluster, sessions=sessions, tokens=tokens) as running:
        for name in order:
            await mixed.replace(name, None)
            await running.grows(2, limit_s=90.0)
        for name in reversed(order):
            await mixed.replace(name, tree)
            await running.grows(2, limit_s=90.0)
        return await running.finish()
