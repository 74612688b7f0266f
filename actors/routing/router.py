"""The gateway's side of a cluster: implements `Sessions` for sessions that live on replicas.

A command is sent to whoever owns its session, or to where the session is placed; `Moved` answers are followed. A
command carries its own idempotency (I5), so one that was not answered is sent again, to whoever owns the session by
then, until `patience_s` ends; then its sender is told, retryably, and repeats it by its id. Watches are in
`actors.routing.subscriptions`.

Nothing here is stored: gateways are many, and any of them may die. After: Orleans' gateways; Envoy's retry budgets are
deliberately not here, because a session has one place and not many alike.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any

import msgspec
import structlog

from actors.cluster.placement import Placement
from actors.hosting.ownership import Moved, session_moving_error
from actors.hosting.runtime import Runtime
from actors.peer.links import Connect, LinkDown, LinkLimits, Links, PeerLink, unreachable
from actors.routing.route_table import RouteTable, RouteUnavailable, retryable_elsewhere
from actors.routing.subscriptions import SubscriptionLimits, Subscriptions
from sessions.model import commands as cm
from sessions.model.errors import SessileError, Unavailable
from sessions.model.types import Principal, SessionKey
from sessions.ports import Directory, Journal, Member, Owner, Published

log = structlog.get_logger(__name__)

HOPS_MAX = 4  # answers that name another owner, followed without a pause


class RouterLimits(msgspec.Struct, frozen=True):
    patience_s: float = 20.0  # how long a command is tried before its sender is told
    pause_min_s: float = 0.01
    pause_max_s: float = 0.25
    view_s: float = 1.0
    owners_max: int = 100_000
    lease_ttl_s: float = 6.0
    links: LinkLimits = LinkLimits()
    watches: SubscriptionLimits = SubscriptionLimits()


class Router:
    """Implements `Sessions` over peer links. An async context: leaving it ends links and watches."""

    def __init__(
        self,
        *,
        gateway: str,
        directory: Directory,
        journal: Journal,
        placement: Placement,
        connect: Connect,
        rng: random.Random,
        limits: RouterLimits | None = None,
    ) -> None:
        """`gateway` names this process and no other."""
        self.limits = limits or RouterLimits()
        self.links = Links(connect, spawn=self._spawn, limits=self.limits.links)
        self.whereabouts = RouteTable(
            directory=directory,
            journal=journal,
            placement=placement,
            links=self.links,
            lease_ttl_s=self.limits.lease_ttl_s,
            owners_max=self.limits.owners_max,
        )
        self.watches = Subscriptions(
            gateway=gateway,
            directory=directory,
            journal=journal,
            whereabouts=self.whereabouts,
            links=self.links,
            spawn=self._spawn,
            rng=rng,
            lease_ttl_s=self.limits.lease_ttl_s,
            limits=self.limits.watches,
        )
        self.links.add_listener(self)
        self.retries = 0
        self._rng = rng
        self._tasks = asyncio.TaskGroup()
        self._running: dict[asyncio.Task[None], None] = {}

    async def __aenter__(self) -> Router:
        await self._tasks.__aenter__()
        with contextlib.suppress(Unavailable):
            await self.whereabouts.refresh()
        self._spawn(self._keep_view())
        self.watches.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.links.close()
        self.whereabouts.close()
        for task in list(self._running):
            task.cancel()
        await self._tasks.__aexit__(kind, error, trace)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._tasks.create_task(work)
        self._running[task] = None
        task.add_done_callback(lambda done: self._running.pop(done, None))
        return task

    async def _keep_view(self) -> None:
        while True:
            await asyncio.sleep(self.limits.view_s)
            try:
                await self.whereabouts.refresh()
            except Unavailable as error:
                log.warning("no_view", error=error.code)

    # -- Sessions --------------------------------------------------------------------------------------------------

    async def execute(self, principal: Principal, command: cm.ActorCommand) -> cm.Ok:
        """See the `Sessions` port."""
        key = Runtime.key_of(principal, command)
        trouble: list[SessileError] = []
        try:
            async with asyncio.timeout(self.limits.patience_s):
                return await self._execute(key, principal, command, trouble)
        except TimeoutError:
            cause = trouble[-1] if trouble else None
            raise Unavailable(
                "session_unavailable",
                "The session cannot be reached at the moment. Repeat the command by its id.",
                retry_after_ms=1_000,
            ) from cause

    async def _execute(
        self, key: SessionKey, principal: Principal, command: cm.ActorCommand, trouble: list[SessileError]
    ) -> cm.Ok:
        """Tries until it is answered. `trouble` takes why it was not, the latest last."""
        making = cm.session_settings_of(command)
        new = isinstance(command, cm.SessionCreate)
        model = making.model if making is not None else None
        pause_s, hops = self.limits.pause_min_s, 0
        absent: Owner | None = None
        while True:
            try:
                route = await self.whereabouts.route(key, new=new, model=model, absent=absent)
                link = await self.links.get(route.member)
                ok, owner = await link.execute(principal, command, activate=route.activate, instead_of=route.instead_of)
                self.whereabouts.remember(key, owner)
                return ok
            except Moved as moved:
                self.whereabouts.remember(key, moved.owner)
                hops += 1
                if moved.owner is not None and hops <= HOPS_MAX:
                    continue
                absent = route.owner if moved.owner is None else None
                trouble[:] = [session_moving_error()]
            except RouteUnavailable as reason:
                trouble[:] = [Unavailable("session_unavailable", str(reason))]
            except LinkDown as down:
                trouble[:] = [unreachable(route.member.replica, down)]
            except SessileError as error:
                if not retryable_elsewhere(error):
                    raise
                if error.code == "shutting_down":
                    self.whereabouts.avoid(route.member.replica)
                self.whereabouts.remember(key, None)
                trouble[:] = [error]
            self.retries += 1
            await asyncio.sleep(pause_s * (0.5 + self._rng.random()))
            pause_s = min(pause_s * 2, self.limits.pause_max_s)

    def watch(self, key: SessionKey, sink: Callable[[Published], None]) -> Callable[[], None]:
        """See the `Sessions` port."""
        return self.watches.watch(key, sink)

    # -- what happens to links -------------------------------------------------------------------------------------

    def link_down(self, link: PeerLink, reason: LinkDown) -> None:
        self.watches.link_down(link)

    def suspected(self, member: Member) -> None:
        self.watches.look_again(member)

    def reachable(self, member: Member) -> None:
        self.watches.look_again(member)
