"""Shows operators the sessions in a replica's memory (their owner, their state, why they are here) and its load.

Decides how a session's presence is described; changes nothing. Pages in the order of (tenant, session), which is the
same on every replica, so that a caller can merge the pages of all of them. A parked session is in no memory and
so in no list: the journal has it, and the next command for it activates it.
"""

from __future__ import annotations

import asyncio
from heapq import nsmallest
from typing import TYPE_CHECKING

from actors.cluster.rendezvous import ranking
from actors.hosting.runtime import Runtime
from actors.maintenance.resident_states import PAGE_MAX
from actors.peer.frames import Measure, Measured, ResidentSession, Survey, Surveyed
from sessions.actor.actor import Actor, Phase
from sessions.limits import HoldsKV
from sessions.load_history import STEP_S, LoadHistory
from sessions.model.types import SessionKey, TenantId
from sessions.ports import Engine
from sessions.service_totals import totals_of

if TYPE_CHECKING:
    from actors.cluster.membership import Membership


class SessionSurvey:
    """Answers operators' questions about one replica's sessions and load."""

    def __init__(
        self, runtime: Runtime, engine: Engine, history: LoadHistory, membership: Membership | None = None
    ) -> None:
        """`membership` is this replica's; None if there is no other replica."""
        self._runtime = runtime
        self._engine = engine
        self._history = history
        self._membership = membership

    def answer(self, survey: Survey) -> Surveyed:
        matching = [key for key in self._runtime.keys_present() if self._fits(key, survey)]
        after = [key for key in matching if survey.after is None or key > survey.after]
        limit = max(1, min(survey.limit, PAGE_MAX))
        page = nsmallest(limit, after)
        described = tuple(self._describe(key) for key in page)
        return Surveyed(survey.id, described, len(matching), len(after) > limit, self._kv_bytes(survey.tenant))

    def measure(self, request: Measure) -> Measured:
        history, samples = self._history, []
        if request.step_s:
            samples = history.samples(after=request.after, step_s=max(STEP_S, request.step_s))
        return Measured(request.id, self._runtime.num_present, totals_of(history.metrics), tuple(samples))

    def _kv_bytes(self, tenant: str) -> int | None:
        engine = self._engine
        return engine.holdings.bytes_of(TenantId(tenant)) if tenant and isinstance(engine, HoldsKV) else None

    def _fits(self, key: SessionKey, survey: Survey) -> bool:
        return (
            survey.tenant in ("", key.tenant)
            and survey.session in ("", key.session)
            and survey.state in ("", state_of(self._runtime.actor(key)))
        )

    def _describe(self, key: SessionKey) -> ResidentSession:
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
        """Returns in words which choice this replica is for the session by rendezvous hashing, among the replicas that
        serve its model."""
        if self._membership is None:
            return "the only replica"
        model, me = self._engine.info.model, self._runtime.identity.replica
        able = [member for member in self._membership.view.members if member.model == model and member.weight > 0]
        ranked = ranking(key, able)
        return f"choice {ranked.index(me) + 1} of {len(ranked)}" if me in ranked else "not in the view"


def state_of(actor: Actor | None) -> str:
    """Returns an actor's state, one of `resident_states.STATES`; "loading" if `actor` is None."""
    match actor:
        case None:
            return "loading"
        case Actor(phase=Phase.WARM):
            return "turn" if actor.busy else "idle"
        case Actor(phase=Phase.PARKING):
            return Phase.SEALED.value  # operators need not tell why it takes no commands
        case _:
            return actor.phase.value
