"""What a replica tells an operator of the sessions in its memory: who has them, in which state, and why here.

Decides how a session's presence is described; changes nothing. Pages in the order of (tenant, session), which is the
same on every replica, so that whoever asks all of them can merge the pages. A parked session is in nobody's memory and
so in nobody's list: the journal has it, and the next one that is asked for it activates it.
"""

from __future__ import annotations

import asyncio
from heapq import nsmallest
from typing import Final

from actors.cluster.membership import Membership
from actors.cluster.placement import ranking
from actors.hosting.runtime import Runtime
from actors.peer.frames import ResidentSession, Survey, Surveyed
from sessions.actor.actor import Actor, Phase
from sessions.limits import HoldsKV
from sessions.model.types import SessionKey, TenantId
from sessions.ports import Engine

PAGE_MAX: Final = 1_000

STATES: Final = ("loading", "idle", "turn", "sealed", "fenced", "gone")


class SessionSurvey:
    """Answers for one replica."""

    def __init__(self, runtime: Runtime, engine: Engine, membership: Membership | None = None) -> None:
        """`membership` None: there is no other replica."""
        self._runtime = runtime
        self._engine = engine
        self._membership = membership

    def answer(self, asked: Survey) -> Surveyed:
        wanted = [key for key in self._runtime.keys_present() if self._fits(key, asked)]
        behind = [key for key in wanted if asked.after is None or key > asked.after]
        limit = max(1, min(asked.limit, PAGE_MAX))
        page = nsmallest(limit, behind)
        described = tuple(self._described(key) for key in page)
        return Surveyed(asked.id, described, len(wanted), len(behind) > limit, self._held(asked.tenant))

    def _held(self, tenant: str) -> int | None:
        engine = self._engine
        return engine.holdings.bytes_of(TenantId(tenant)) if tenant and isinstance(engine, HoldsKV) else None

    def _fits(self, key: SessionKey, asked: Survey) -> bool:
        return (
            asked.tenant in ("", key.tenant)
            and asked.session in ("", key.session)
            and asked.state in ("", state_of(self._runtime.actor(key)))
        )

    def _described(self, key: SessionKey) -> ResidentSession:
        actor = self._runtime.actor(key)
        kv = self._engine.place(key)
        return ResidentSession(
            key=key,
            replica=self._runtime.identity.replica,
            state=state_of(actor),
            fence=actor.fence if actor is not None else 0,
            epoch=actor.epoch if actor is not None else "",
            top=actor.top if actor is not None else 0,
            open=tuple(actor.open) if actor is not None else (),
            kv_tier=kv.tier,
            kv_tokens=kv.tokens,
            readers=self._runtime.readers(key),
            idle_s=asyncio.get_running_loop().time() - actor.active_at if actor is not None and not actor.busy else 0.0,
            reason=f"{self._runtime.reason(key)}; {self._choice(key)}",
        )

    def _choice(self, key: SessionKey) -> str:
        """Which choice of the hash this replica is for the session, of those that serve its model now."""
        if self._membership is None:
            return "the only replica"
        model, me = self._engine.info.model, self._runtime.identity.replica
        able = [member for member in self._membership.view.members if member.model == model and member.weight > 0]
        ranked = ranking(key, able)
        return f"choice {ranked.index(me) + 1} of {len(ranked)}" if me in ranked else "not in the view"


def state_of(actor: Actor | None) -> str:
    """One of STATES."""
    match actor:
        case None:
            return "loading"
        case Actor(phase=Phase.WARM):
            return "turn" if actor.busy else "idle"
        case _:
            return actor.phase.value
