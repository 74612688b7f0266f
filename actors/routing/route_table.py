"""Finds the replica for a session: the owners that a gateway has met, the directory, the journal, then placement.

Everything here is a hint that is validated at the target. In this order: an owner that we have met or that the
directory names; for a session without one, the replica that the journal granted it to last, which has its KV, while its
load is in bounds; else placement. When the directory is away, the journal's last grant stands in for it.

Early takeover: a suspected owner of a session may be replaced before its lease ends, by one other replica (the
survivor) per lease TTL. It is safe because the journal fences; it is limited because each takeover moves a session.

Bounds: `owners_max` owners are remembered, the longest unused forgotten first.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict

import msgspec
import structlog

from actors.cluster.placement import BoundedRendezvous
from actors.cluster.pool_states import PoolStates
from actors.hosting.ownership import last_replica, session_moving_error
from actors.peer.links import Links
from actors.routing.router_limits import RouterLimits
from sessions.model import commands as cm
from sessions.model.errors import NotFound, SessileError, Unavailable
from sessions.model.journal_types import Head
from sessions.model.request import Request
from sessions.model.types import ActivationId, ReplicaId, Sampling, SessionKey
from sessions.ports import Directory, Journal, Member, Owner, View
from sessions.routing.decision import TurnSituation, decide
from sessions.routing.models_file import NO_POOLS, PoolsNow, split_head_model
from sessions.routing.scorer import score_turn
from sessions.routing.turn_facts import TurnFacts, candidate_of, facts_of

log = structlog.get_logger(__name__)

AVOID_S = 2.0  # how long a leaving replica is not tried again: by then the view shows it


class Route(msgspec.Struct, frozen=True):
    """The replica to send a command to. `owner` is the session's owner there, if it has one as far as known.
    `activate`: the session was placed there, so the replica may activate it. `instead_of` is the owner that it takes
    over from."""

    member: Member
    owner: Owner | None
    activate: bool
    instead_of: Owner | None = None


class RouteUnavailable(Exception):
    """Raised if no replica can be reached for the session at this moment; the caller tries again shortly."""


class _TakeoverAttempt(msgspec.Struct, frozen=True):
    at: float
    instead_of: Owner
    survivor: Member


class RouteTable:
    """Knows, for one process, where sessions are or should go."""

    def __init__(
        self,
        *,
        directory: Directory,
        journal: Journal,
        placement: BoundedRendezvous,
        links: Links,
        limits: RouterLimits,
        pools: PoolsNow = lambda: NO_POOLS,
    ) -> None:
        self._models_file = pools
        self.pool_states = PoolStates(lambda: self.view, pools)
        self._set_view(View(0, ()))
        self._directory = directory
        self._journal = journal
        self._placement = placement
        self._links = links
        self._lease_ttl_s = limits.lease_ttl_s
        self._owners_max = limits.owners_max
        self._owners: OrderedDict[SessionKey, Owner] = OrderedDict()
        self._takeovers: OrderedDict[SessionKey, _TakeoverAttempt] = OrderedDict()
        self._avoid: dict[ReplicaId, float] = {}
        self._refreshing: asyncio.Task[None] | None = None

    # -- the view --------------------------------------------------------------------------------------------------

    async def refresh(self) -> None:
        """Reads the view again; concurrent callers wait for the same answer. Raises Unavailable."""
        if self._refreshing is None:
            task = self._refreshing = asyncio.get_running_loop().create_task(self._refresh())
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.shield(self._refreshing)

    def close(self) -> None:
        """Stops reading the view."""
        if self._refreshing is not None:
            self._refreshing.cancel()

    def _set_view(self, view: View) -> None:
        """Keeps a view and its members by name, so that commands need not look through a large view."""
        self.view = view
        self._members = {member.replica: member for member in view.members}
        self.pool_states()  # so that it knows every model of every view

    async def _refresh(self) -> None:
        try:
            view = await self._directory.view()
            if not view.members and any(self._links.member(member) for member in self.view.members):
                return  # an emptied directory: those that we are linked to live, and will announce themselves again
            self._set_view(view)
            self._links.update(view.members)
        finally:
            self._refreshing = None

    def member(self, owner: Owner) -> Member | None:
        """Returns the replica process of an owner, if it is in the view or there is a link to it; else None."""
        member = self._members.get(owner.replica)
        if member is not None and member.incarnation == owner.incarnation:
            return member
        return self._links.member(owner)

    @property
    def has_replica(self) -> bool:
        """Whether at least one replica takes sessions, as far as is known here."""
        return any(not member.draining and not self._links.suspect(member) for member in self.view.members)

    def avoid(self, replica: ReplicaId) -> None:
        """Avoids a replica for AVOID_S: it has answered that it takes nothing new."""
        self._avoid[replica] = asyncio.get_running_loop().time() + AVOID_S

    def _avoided(self) -> list[ReplicaId]:
        now = asyncio.get_running_loop().time()
        suspects = list[ReplicaId]()
        if self._links.has_suspects:
            suspects = [member.replica for member in self.view.members if self._links.suspect(member)]
        return [*suspects, *(replica for replica, until in self._avoid.items() if until > now)]

    # -- owners ----------------------------------------------------------------------------------------------------

    def remember(self, key: SessionKey, owner: Owner | None) -> None:
        """Keeps the owner of a session, as an answer has named it; None removes the owner that was kept."""
        self._owners.pop(key, None)
        if owner is not None:
            self._owners[key] = owner
            if len(self._owners) > self._owners_max:
                self._owners.popitem(last=False)

    def remembered(self, key: SessionKey) -> Owner | None:
        return self._owners.get(key)

    async def owner(self, key: SessionKey) -> Owner | None:
        """Returns the owner of a session by the directory, or by the journal's last grant while the directory is away;
        None if the session has none. Raises Unavailable if neither can answer."""
        try:
            return await self._directory.locate(key)
        except Unavailable as error:
            head = await self._journal.head(key)
            log.info("owner_read_from_journal", session=key.session, tenant=key.tenant, error=error.code)
            return None if head is None else await self._granted(head)

    async def _granted(self, head: Head) -> Owner | None:
        """Returns the owner that the journal granted a session to last, if its process may live; else None. Raises
        Unavailable if the owner may be a process that the view does not name yet.

        A grant names the replica and not its process: the process in the view may have ended, and its successor, which
        answers in its place, must not be replaced.
        """
        replica, _, activation = head.owner.rpartition("/")
        member = self._members.get(ReplicaId(replica))
        if member is not None and await self._links.is_replaced(member):
            raise session_moving_error()
        return None if member is None else Owner(member.replica, member.incarnation, ActivationId(activation))

    # -- routes ----------------------------------------------------------------------------------------------------

    async def route(
        self,
        key: SessionKey,
        *,
        new: bool,
        model: str | None,
        absent: Owner | None,
        near: SessionKey | None = None,
        any_model: bool = False,
    ) -> Route:
        """Returns where to send a command. `new`: the session may have no log yet. `absent` is the owner that has just
        answered that it does not have the session. `near` is a session whose replica has KV that a new session begins
        with. `any_model`: the command needs no engine, so if no replica serves the session's model every other will do.
        Raises RouteUnavailable, or SessileError."""
        owner = await self._present_owner(key)
        if owner is not None:
            member = self.member(owner)
            if member is None:
                await self.refresh()
                member = self.member(owner)
            if member is None:
                self.remember(key, None)
                raise RouteUnavailable(f"{owner.replica} is not there")
            if not self._links.suspect(member):
                return Route(member, owner, activate=owner == absent)
            if model is None and len(self.pool_states.known()) > 1:
                head = await self._journal.head(key)
                model = self.model_of(head.model, owner) if head is not None else None
            survivor = self.survivor(key, owner, model, any_model=any_model)
            if survivor is None:
                self.remember(key, None)
                raise RouteUnavailable(f"{owner.replica} does not answer")
            return Route(survivor, None, activate=True, instead_of=owner)
        head = None if new else await self._journal.head(key)
        holder = None if near is None or head is not None else await self._replica_of(near)
        return Route(self.place(key, head, model, holder, any_model=any_model), None, activate=True)

    async def _present_owner(self, key: SessionKey) -> Owner | None:
        """Returns the owner of a session that is remembered, or else that the directory names. If the remembered owner
        is suspected, the directory is asked again: it may have left in order, and then nothing is taken over from
        it."""
        owner = self.remembered(key)
        if owner is None:
            return await self.owner(key)
        if self._links.suspect(owner):
            with contextlib.suppress(Unavailable):
                owner = await self._directory.locate(key)
                self.remember(key, owner)
        return owner

    async def _replica_of(self, key: SessionKey) -> ReplicaId | None:
        """Returns the replica that has a session, or had it last; None if it never had one."""
        with contextlib.suppress(Unavailable):
            owner = self.remembered(key) or await self.owner(key)
            if owner is not None:
                return owner.replica
        head = await self._journal.head(key)
        return None if head is None else ReplicaId(last_replica(head))

    def place(
        self,
        key: SessionKey,
        head: Head | None,
        model: str | None,
        holder: ReplicaId | None = None,
        *,
        any_model: bool = False,
    ) -> Member:
        """Returns where a session without an owner should go. For a session without a log, `head` is None, and `holder`
        is the replica that has KV it begins with. Raises Unavailable if no replica can take it."""
        if head is not None:
            model = self.model_of(head.model) or model
            holder = ReplicaId(last_replica(head))
        avoided, served = self._avoided(), self._served(model, new=head is None)
        member = self._placement.choose(key, self.view, model=served, holder=holder, avoid=avoided)
        if member is None and any_model:
            member = self._placement.choose(key, self.view, model=None, holder=None, avoid=avoided)
        if member is None:
            raise Unavailable("no_replica", "No replica is ready for this session.", retry_after_ms=1_000)
        return member

    def survivor(self, key: SessionKey, lost: Owner, model: str | None, *, any_model: bool = False) -> Member | None:
        """Returns the replica that takes a session over from the suspected owner `lost`. Within one lease TTL it is
        always the same one. None: no replica may take it over at present."""
        now = asyncio.get_running_loop().time()
        attempt = self._takeovers.get(key)
        if attempt is not None and now - attempt.at < self._lease_ttl_s:
            same = attempt.instead_of == lost and not self._links.suspect(attempt.survivor)
            return attempt.survivor if same else None
        avoided = [lost.replica, *self._avoided()]
        member = self._placement.choose(key, self.view, model=self._served(model, new=False), avoid=avoided)
        if member is None and any_model:
            member = self._placement.choose(key, self.view, model=None, avoid=avoided)
        if member is not None:
            self._takeovers.pop(key, None)
            self._takeovers[key] = _TakeoverAttempt(now, lost, member)
            while len(self._takeovers) > self._owners_max:
                self._takeovers.popitem(last=False)
        return member

    def model_of(self, shown: str, lost: Owner | None = None) -> str | None:
        """Returns the model to place a session by; `shown` is what its head shows. It is the session's own model, or,
        if no replica serves that, the one of the same alias that is nearest in quality. `lost` is an owner whose
        replica does not count. Returns None if every model will do."""
        alias, model = split_head_model(shown)
        file = self._models_file().file
        if not alias or alias not in file.aliases or model not in file.models or self._served_without(model, lost):
            return model or None
        quality = file.models[model].quality
        there = [name for name in file.members(alias) if self._served_without(name, lost)]
        return min(there, key=lambda name: abs(file.models[name].quality - quality), default=model)

    def _served_without(self, model: str, lost: Owner | None) -> bool:
        """Returns whether a replica serves the model, not counting avoided replicas and the replica of `lost`."""
        state = self.pool_states().get(model)
        avoided = {*self._avoided(), *([lost.replica] if lost is not None else [])}
        if state is None or state.replicas > len(avoided):
            return state is not None
        members = (member for member in self.view.members if member.model == model and not member.draining)
        return any(member.replica not in avoided for member in members)

    def first_model(self, request: Request) -> str | None:
        """Returns the model that a new session begins with; None if every model will do. Raises Forbidden."""
        settings = cm.session_settings_of(request.command)
        if settings is None:
            return None
        pools = self._models_file()
        choice = pools.choice(request.key.tenant, settings.model)
        if choice is None:
            return settings.model
        facts = facts_of(request.command) or TurnFacts("", len(settings.tools), Sampling(), 0)
        score = score_turn(facts.text, tools=facts.tools, wish=pools.wish(request.key.tenant))
        candidates = [candidate_of(name, pools, self.pool_states(), facts) for name in choice.models]
        decided = decide(TurnSituation("", score.value, facts.tokens), candidates, pools.file.routing)
        return decided.model if decided is not None else choice.models[0]

    def models_of(self, name: str) -> tuple[str, ...]:
        """Returns the models that a name means, with aliases resolved."""
        file = self._models_file().file
        return file.members(name) if name in file.aliases else (name,)

    def takeover_failed(self, key: SessionKey, lost: Owner) -> None:
        """Notes that the survivor did not take a session over, so that another one may be chosen."""
        attempt = self._takeovers.get(key)
        if attempt is not None and attempt.instead_of == lost:
            del self._takeovers[key]

    def _served(self, model: str | None, *, new: bool) -> str | None:
        """Returns the model to place by; None if every replica will do. If all replicas of a model are away the caller
        waits, and no other model takes its place. If only one model exists, every name means it, as in a single
        process. Raises NotFound for a new session whose model does not exist."""
        if model is None or len(self.pool_states.known()) <= 1:
            return None
        meant = self.pool_states.model_of(model)
        if new and meant is None:
            raise NotFound("model_not_found", f"No replica serves the model {model!r}.", param="model")
        return model if meant is None else meant


def retryable_elsewhere(error: SessileError) -> bool:
    """Returns whether an error is about where a command was sent, so that it may be sent elsewhere. All other errors
    are the command's answer."""
    return error.code in RETRYABLE_ELSEWHERE or error.code.startswith("directory_")


RETRYABLE_ELSEWHERE = frozenset({"session_moving", "shutting_down", "lease_missing", "no_replica"})
