"""Routes commands from a gateway to the replicas that own their sessions; implements `Sessions` over peer links.

A command is sent to the owner of its session, or to where the session is placed; `Moved` answers are followed. A
command carries its own idempotency (I5), so one that was not answered is sent again, to the owner at that time,
until `patience_s` ends; then its sender gets a retryable error, and repeats it by its id. Watches are in
`actors.routing.subscriptions`.

Nothing here is stored: gateways are many, and any of them may die. After: Orleans' gateways; Envoy's retry budgets are
deliberately not here, because a session has one place and not many alike.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from types import TracebackType

import structlog

from actors.cluster.placement import BoundedRendezvous
from actors.hosting.ownership import Moved, session_moving_error
from actors.hosting.task_scope import TaskScope
from actors.peer.links import Connect, LinkDown, Links, unreachable
from actors.routing.route_table import RouteTable, RouteUnavailable, retryable_elsewhere
from actors.routing.router_limits import RouterLimits
from actors.routing.subscriptions import Subscriptions
from sessions.backoff import Backoff
from sessions.model import commands as cm
from sessions.model.errors import SessileError, Unavailable
from sessions.model.inspection import Answer, Question
from sessions.model.request import Request
from sessions.model.types import Principal, SessionKey
from sessions.ports import Directory, Journal, Member, Owner, Published
from sessions.routing.models_file import NO_POOLS, PoolsNow

log = structlog.get_logger(__name__)

HOPS_MAX = 4  # answers that name another owner and are followed without a pause


class Router:
    """The `Sessions` port over peer links. It is an async context: leaving it ends links and watches."""

    def __init__(
        self,
        *,
        gateway: str,
        directory: Directory,
        journal: Journal,
        placement: BoundedRendezvous,
        connect: Connect,
        rng: random.Random,
        limits: RouterLimits | None = None,
        pools: PoolsNow = lambda: NO_POOLS,
    ) -> None:
        """`gateway` is this process's unique name; `pools` returns the models file, which must be the same as the
        replicas'."""
        self.limits = limits or RouterLimits()
        self.retries = 0
        self._rng = rng
        self._tasks = TaskScope()
        self.links = Links(connect, spawn=self._tasks.spawn, limits=self.limits.links)
        self.routes = RouteTable(
            directory=directory,
            journal=journal,
            placement=placement,
            links=self.links,
            limits=self.limits,
            pools=pools,
        )
        self.subscriptions = Subscriptions(
            gateway=gateway,
            directory=directory,
            journal=journal,
            routes=self.routes,
            links=self.links,
            spawn=self._tasks.spawn,
            rng=rng,
            limits=self.limits,
        )

    async def __aenter__(self) -> Router:
        await self._tasks.__aenter__()
        with contextlib.suppress(Unavailable):
            await self.routes.refresh()
            self._link_ahead()
        self._tasks.spawn(self._refresh_view())
        self.subscriptions.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.links.close()
        self.routes.close()
        await self._tasks.__aexit__(kind, error, trace)

    def unready(self) -> str | None:
        """Returns why commands would find no replica; None if they would find one."""
        return None if self.routes.has_replica else "no replica is reachable"

    async def _refresh_view(self) -> None:
        while True:
            await asyncio.sleep(self.limits.view_s)
            try:
                await self.routes.refresh()
                self._link_ahead()
            except Unavailable as error:
                log.warning("view_refresh_failed", error=error.code)

    def _link_ahead(self) -> None:
        """Dials replicas that are not linked yet, so that no reader waits for the dialing when a session goes there."""
        for member in self.routes.view.members[: self.limits.links_ahead]:
            if self.links.member(member) is None and not self.links.suspect(member):
                self._tasks.spawn(self._dial(member))

    async def _dial(self, member: Member) -> None:
        with contextlib.suppress(LinkDown):  # whoever needs it finds out by itself
            await self.links.get(member)

    # -- Sessions --------------------------------------------------------------------------------------------------

    async def execute(self, request: Request) -> cm.Ok:
        """Executes a command as the `Sessions` port says."""
        errors: list[SessileError] = []
        try:
            async with asyncio.timeout(self.limits.patience_s):
                return await self._execute(request, errors)
        except TimeoutError:
            cause = errors[-1] if errors else None
            raise Unavailable(
                "session_unavailable",
                "The session cannot be reached at the moment. Repeat the command by its id.",
                retry_after_ms=1_000,
            ) from cause

    async def _execute(self, request: Request, errors: list[SessileError]) -> cm.Ok:
        """Sends a command until it is answered. `errors` is a list whose only entry becomes the last reason why it was
        not answered."""
        key, command = request.key, request.command
        new, deletes = isinstance(command, cm.SessionCreate), isinstance(command, cm.SessionDelete)
        model = self.routes.first_model(request)
        backoff, hops = Backoff(self.limits.pause_min_s, self.limits.pause_max_s, self._rng), 0
        absent: Owner | None = None
        while True:
            try:
                route = await self.routes.route(
                    key, new=new, model=model, absent=absent, near=request.near, any_model=deletes
                )
                link = await self.links.get(route.member)
                ok, owner = await link.execute(request, activate=route.activate, instead_of=route.instead_of)
                self.routes.remember(key, owner)
                return ok
            except Moved as moved:
                self.routes.remember(key, moved.owner)
                hops += 1
                if moved.owner is not None and hops <= HOPS_MAX:
                    continue
                absent = route.owner if moved.owner is None else None
                errors[:] = [session_moving_error()]
            except RouteUnavailable as reason:
                errors[:] = [Unavailable("session_unavailable", str(reason))]
            except LinkDown as down:
                errors[:] = [unreachable(route.member.replica, down)]
            except SessileError as error:
                if not retryable_elsewhere(error):
                    raise
                if error.code == "shutting_down":
                    self.routes.avoid(route.member.replica)
                self.routes.remember(key, None)
                errors[:] = [error]
            self.retries += 1
            await asyncio.sleep(backoff.next_s())

    async def inspect(self, principal: Principal, model: str, question: Question) -> Answer:
        """Has a question about texts answered by a replica of a model, trying them one after the other. Raises the
        SessileError that a replica answers with, and Unavailable if none can be reached."""
        members = [member for member in self.routes.view.members if member.model in self.routes.models_of(model)]
        for member in sorted(members, key=lambda other: (other.draining, self._rng.random())):
            try:
                return await (await self.links.get(member)).inspect(principal, question)
            except LinkDown as down:
                log.info("inspection_failed", replica=member.replica, reason=str(down))
        raise Unavailable("no_replica", f"No replica of {model!r} answers at the moment.", retry_after_ms=1_000)

    def watch(self, key: SessionKey, sink: Callable[[Published], None]) -> Callable[[], None]:
        """Begins a watch as the `Sessions` port says."""
        return self.subscriptions.watch(key, sink)
