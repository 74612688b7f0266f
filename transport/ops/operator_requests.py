"""Operates a cluster over its peer links: lists its members and the sessions in their memory, drains a replica.

Speaks the peer link like everybody else in the cluster, as a peer of the kind `operator`. Does not print.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

import msgspec

from actors.directory import Leases
from actors.peer.frames import DrainProgress, ResidentSession, Surveyed
from actors.peer.links import LinkDown, unreachable
from sessions.model.errors import BadInput, NotFound
from sessions.model.types import SessionId, SessionKey, TenantId
from sessions.ports import Member, View

if TYPE_CHECKING:
    from actors.peer.client import PeerClient
    from transport.peer.security import PeerSecurity

A = TypeVar("A")


class SessionQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A filter for sessions in memory; empty fields do not filter. `after` is the last one of the page before:
    TENANT/SESSION."""

    replica: str = ""
    tenant: str = ""
    session: str = ""
    state: str = ""
    after: str = ""
    limit: int = 50


class SessionPage(msgspec.Struct, frozen=True):
    """A page of the cluster's sessions in memory. `silent` are the replicas that did not answer, with the reason."""

    residents: list[ResidentSession]
    total: int
    has_more: bool
    silent: dict[str, str]


async def list_members(directory: Leases) -> View:
    """Returns the live members. Opens `directory` and closes it again. Raises Unavailable."""
    await directory.open()
    try:
        return await directory.view()
    finally:
        await directory.close()


def find_member(view: View, name: str) -> Member:
    """Returns a member by its name. Raises NotFound, which names the members that exist."""
    members = {str(member.replica): member for member in view.members}
    if name not in members:
        there = ", ".join(sorted(members)) or "none"
        raise NotFound("replica_not_found", f"There is no replica {name!r}; there are: {there}.", param="replica")
    return members[name]


@asynccontextmanager
async def open_link(security: PeerSecurity, member: Member, name: str) -> AsyncIterator[PeerClient]:
    """Opens a link to a replica for the time of the block. Raises LinkDown. Imports gRPC here, because a server that is
    alone has no links."""
    from actors.peer.client import Connector
    from transport.peer.client import GrpcDialer

    link = await Connector(GrpcDialer(security), kind="operator", name=name)(member)
    carrying = asyncio.create_task(link.run())
    try:
        yield link
    finally:
        await link.close()
        await carrying


async def drain(directory: Leases, security: PeerSecurity, name: str) -> DrainProgress:
    """Drains a replica and returns its last report. Raises NotFound, Unavailable."""
    member = find_member(await list_members(directory), name)
    try:
        async with open_link(security, member, "drain") as link:
            return await link.drain(asyncio.Queue())
    except LinkDown as down:
        raise unreachable(member.replica, down) from down


async def undrain(security: PeerSecurity, member: Member, by: str) -> None:
    """Ends a replica's drain. `by` names the link in the replica's log. Raises SessileError, Unavailable."""
    try:
        async with open_link(security, member, by) as link:
            await link.undrain()
    except LinkDown as down:
        raise unreachable(member.replica, down) from down


async def list_sessions(directory: Leases, security: PeerSecurity, query: SessionQuery) -> SessionPage:
    """Returns a page of the sessions in memory, from the replicas themselves. Raises NotFound, Unavailable."""
    view = await list_members(directory)
    return merge_pages(query, await survey(security, view, query, name="sessions"))


async def survey(
    security: PeerSecurity, view: View, query: SessionQuery, *, name: str, timeout_s: float | None = None
) -> dict[str, Surveyed | LinkDown]:
    """Returns each replica's answer to `query`, or why it does not answer, by its name. Raises NotFound."""
    after = parse_session_key(query.after) if query.after else None

    def page(link: PeerClient) -> Awaitable[Surveyed]:
        return link.survey(
            after=after, limit=query.limit, tenant=query.tenant, session=query.session, state=query.state
        )

    return await query_replicas(security, view, query.replica, page, name=name, timeout_s=timeout_s)


async def query_replicas(
    security: PeerSecurity,
    view: View,
    replica: str,
    request: Callable[[PeerClient], Awaitable[A]],
    *,
    name: str,
    timeout_s: float | None = None,
) -> dict[str, A | LinkDown]:
    """Sends `request` to each replica (or only to the named one). Returns its answer, or why there is none, by its
    name. Raises NotFound."""
    members = [find_member(view, replica)] if replica else list(view.members)

    async def one(member: Member) -> A | LinkDown:
        try:
            async with asyncio.timeout(timeout_s), open_link(security, member, name) as link:
                return await request(link)
        except LinkDown as down:
            return down
        except TimeoutError:
            return LinkDown("keepalive", f"no answer in {timeout_s:.0f} s")

    answers = await asyncio.gather(*map(one, members))
    return {str(member.replica): each for member, each in zip(members, answers, strict=True)}


def merge_pages(query: SessionQuery, answers: Mapping[str, Surveyed | LinkDown]) -> SessionPage:
    """Returns one page made of the replicas' pages, with the replicas that did not answer."""
    pages = [answer for answer in answers.values() if isinstance(answer, Surveyed)]
    merged = sorted((each for page in pages for each in page.residents), key=lambda each: (each.key, each.replica))
    return SessionPage(
        merged[: query.limit],
        sum(page.total for page in pages),
        len(merged) > query.limit or any(page.has_more for page in pages),
        {replica: str(answer) for replica, answer in answers.items() if isinstance(answer, LinkDown)},
    )


def parse_session_key(text: str) -> SessionKey:
    """Returns the session key in TENANT/SESSION. Raises BadInput."""
    tenant, slash, session = text.partition("/")
    if not (tenant and slash and session):
        raise BadInput(
            "invalid_request", f"after {text!r} is not TENANT/SESSION, as a page names its last one.", param="after"
        )
    return SessionKey(TenantId(tenant), SessionId(session))
