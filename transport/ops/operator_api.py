"""The operator API: lists replicas and sessions, drains a replica, hands a session off.

Two implementations: `LocalOperatorApi` for a process that is all there is, `ClusterOperatorApi` for a gateway, which
surveys the replicas over peer links of the kind `operator`, as `app.py sessions` does. A replica that does not answer
is named with the reason, and the rest is shown. Who may use it is the routes' business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import structlog

from actors.hosting.runtime import Runtime
from actors.maintenance.introspection import SessionSurvey
from actors.peer.frames import Measure, Measured, ResidentSession, Survey, Surveyed
from actors.peer.links import LinkDown, unreachable
from sessions.load_history import LoadHistory
from sessions.model.errors import Conflict, SessileError
from sessions.model.types import SessionKey, TenantId
from sessions.ports import Engine, Member, View
from transport.ops.operator_requests import (
    SessionPage,
    SessionQuery,
    find_member,
    merge_pages,
    open_link,
    parse_session_key,
    query_replicas,
    survey,
    undrain,
)
from transport.tasks import Tasks

if TYPE_CHECKING:
    from transport.peer.security import PeerSecurity

ANSWER_S: Final = 10.0
LINK_NAME: Final = "operator-page"  # the name of these links in replicas' logs
MEASURE_S: Final = 2.0  # the page does not wait longer for a replica

log = structlog.get_logger(__name__)


class OperatorApi(Protocol):
    async def replicas(self) -> list[dict[str, Any]]:
        """Returns the replicas with state and load. Raises Unavailable."""

    async def sessions(self, query: SessionQuery) -> SessionPage:
        """Returns a page of the sessions in memory. Raises NotFound, BadInput, Unavailable."""

    async def kv_of(self, tenant: TenantId) -> HeldKV:
        """Returns how much KV of a tenant each replica holds. Raises Unavailable."""

    async def measure(self, replica: str = "", *, after: int = 0, step_s: int = 0) -> dict[str, Measured | LinkDown]:
        """Returns, by replica, how well its readers are served and its load since `after` (unix seconds) in steps of
        `step_s` (0: no load); or why it does not answer. Raises NotFound, Unavailable."""

    async def drain(self, replica: str) -> None:
        """Begins to drain a replica. Raises NotFound, Conflict, Unavailable."""

    async def undrain(self, replica: str) -> None:
        """Ends a drain, so that the replica takes sessions again. Raises NotFound, Conflict, Unavailable."""

    async def hand_off(self, replica: str, key: SessionKey, to: str) -> str:
        """Moves a session of `replica` to the replica `to` ("": placement chooses). Returns the new owner. Raises
        NotFound, BadInput, Conflict, Unavailable."""


def member_shown(member: Member) -> dict[str, Any]:
    return {
        "replica": member.replica,
        "state": "draining" if member.draining else "serving",
        "load": round(member.load, 3),
        "model": member.model,
        "address": member.address,
        "weight": member.weight,
        "slots": member.engine.slots if member.engine is not None else None,
        "context_window": member.engine.context_window if member.engine is not None else None,
        "smaller_model": (member.engine.smaller_model or None) if member.engine is not None else None,
    }


def resident_shown(resident: ResidentSession) -> dict[str, Any]:
    return {
        "tenant": resident.key.tenant,
        "session": resident.key.session,
        **{name: getattr(resident, name) for name in resident.__struct_fields__ if name != "key"},
    }


class HeldKV(NamedTuple):
    """The bytes of KV by replica (None if its engine does not count them), and why the other replicas are silent."""

    bytes_of: dict[str, int | None]
    silent: dict[str, str]


def held_kv(answers: Mapping[str, Surveyed | LinkDown]) -> HeldKV:
    return HeldKV(
        {replica: answer.kv_bytes for replica, answer in answers.items() if isinstance(answer, Surveyed)},
        {replica: str(answer) for replica, answer in answers.items() if isinstance(answer, LinkDown)},
    )


class LocalOperatorApi:
    """Implements `OperatorApi` for `serve`, where there is only one replica."""

    def __init__(self, member: Callable[[], Member], surveyor: SessionSurvey, engine: Engine) -> None:
        self._member = member
        self._surveyor = surveyor
        self._engine = engine

    async def replicas(self) -> list[dict[str, Any]]:
        stats = self._engine.stats()
        load = (stats.running + stats.waiting) / max(1, stats.slots)
        return [{**member_shown(self._member()), "load": round(load, 3), "slots": stats.slots}]

    async def sessions(self, query: SessionQuery) -> SessionPage:
        return merge_pages(query, self._surveyed(query))

    async def kv_of(self, tenant: TenantId) -> HeldKV:
        return held_kv(self._surveyed(SessionQuery(tenant=tenant, limit=1)))

    def _surveyed(self, query: SessionQuery) -> dict[str, Surveyed | LinkDown]:
        after = parse_session_key(query.after) if query.after else None
        request = Survey(0, after, query.limit, query.tenant, query.session, query.state)
        return {str(self._member().replica): self._surveyor.answer(request)}

    async def measure(self, replica: str = "", *, after: int = 0, step_s: int = 0) -> dict[str, Measured | LinkDown]:
        member = self._member()
        if replica:
            find_member(View(0, (member,)), replica)
        return {str(member.replica): self._surveyor.measure(Measure(0, after, step_s))}

    async def drain(self, replica: str) -> None:
        raise no_other_replica()

    async def undrain(self, replica: str) -> None:
        raise no_other_replica()

    async def hand_off(self, replica: str, key: SessionKey, to: str) -> str:
        raise no_other_replica()


class ClusterOperatorApi:
    """Implements `OperatorApi` for a gateway. Drains run in the background; the replicas' list shows when they end."""

    def __init__(self, view: Callable[[], View], security: PeerSecurity, tasks: Tasks) -> None:
        self._view = view
        self._security = security
        self._tasks = tasks
        self._draining: set[str] = set()

    async def replicas(self) -> list[dict[str, Any]]:
        return [member_shown(member) for member in self._view().members]

    async def sessions(self, query: SessionQuery) -> SessionPage:
        return merge_pages(query, await self._surveyed(query))

    async def kv_of(self, tenant: TenantId) -> HeldKV:
        return held_kv(await self._surveyed(SessionQuery(tenant=tenant, limit=1)))

    async def _surveyed(self, query: SessionQuery) -> dict[str, Surveyed | LinkDown]:
        return await survey(self._security, self._view(), query, name=LINK_NAME, timeout_s=ANSWER_S)

    async def measure(self, replica: str = "", *, after: int = 0, step_s: int = 0) -> dict[str, Measured | LinkDown]:
        return await query_replicas(
            self._security,
            self._view(),
            replica,
            lambda link: link.measure(after=after, step_s=step_s),
            name=LINK_NAME,
            timeout_s=MEASURE_S,
        )

    async def drain(self, replica: str) -> None:
        member = find_member(self._view(), replica)
        if replica not in self._draining:
            self._draining.add(replica)
            self._tasks.start(self._drain(member))

    async def _drain(self, member: Member) -> None:
        try:
            async with open_link(self._security, member, LINK_NAME) as link:
                await link.drain(asyncio.Queue())
            log.info("replica_drained", replica=member.replica)
        except (LinkDown, SessileError) as error:
            log.warning("drain_failed", replica=member.replica, error=str(error))
        finally:
            self._draining.discard(str(member.replica))

    async def undrain(self, replica: str) -> None:
        await undrain(self._security, find_member(self._view(), replica), LINK_NAME)

    async def hand_off(self, replica: str, key: SessionKey, to: str) -> str:
        member = find_member(self._view(), replica)
        try:
            async with open_link(self._security, member, LINK_NAME) as link:
                return str((await link.move(key, to)).replica)
        except LinkDown as down:
            raise unreachable(member.replica, down) from down


def no_other_replica() -> Conflict:
    return Conflict("session_stays", "This process is all there is: there is no other replica.", retryable=True)


def local_operator_api(
    member: Callable[[], Member], runtime: Runtime, engine: Engine, history: LoadHistory
) -> LocalOperatorApi:
    return LocalOperatorApi(member, SessionSurvey(runtime, engine, history), engine)
