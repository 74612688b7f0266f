"""What an operator asks of a cluster: who is in it, who has which session and why; and how a replica is emptied.

Speaks the peer link like everybody else in the cluster, as a peer of the kind `operator`. Does not print.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import msgspec

from actors.directory import Leases
from actors.peer.client import Connector, PeerClient
from actors.peer.frames import DrainProgress, ResidentSession, Surveyed
from actors.peer.links import LinkDown, unreachable
from sessions.model.errors import BadInput, NotFound
from sessions.model.types import SessionId, SessionKey, TenantId
from sessions.ports import Member, View
from transport.peer.client import GrpcDialer
from transport.peer.security import PeerSecurity


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Which sessions are to be shown; empty: all. `after` is the last one of the page before, TENANT/SESSION."""

    replica: str = ""
    tenant: str = ""
    session: str = ""
    state: str = ""
    after: str = ""
    limit: int = 50


class Found(msgspec.Struct, frozen=True):
    """A page of the cluster's sessions in memory. `silent` replicas did not answer, and why."""

    residents: list[ResidentSession]
    total: int
    has_more: bool
    silent: dict[str, str]


async def members_of(directory: Leases) -> View:
    """The live members. `directory` is not open yet, and is closed afterwards. Raises Unavailable."""
    await directory.open()
    try:
        return await directory.view()
    finally:
        await directory.close()


def described(view: View) -> str:
    """A line for the view and one for each member."""
    lines = [f"view {view.version}, {len(view.members)} replicas"]
    for member in view.members:
        state = "draining" if member.draining else "serving"
        lines.append(f"{member.replica}  {state}  load {member.load:.2f}  {member.address}  {member.model}")
    return "\n".join(lines)


@asynccontextmanager
async def linked(security: PeerSecurity, member: Member, name: str) -> AsyncIterator[PeerClient]:
    """A link to a replica for as long as the block runs. Raises LinkDown."""
    link = await Connector(GrpcDialer(security), kind="operator", name=name)(member)
    carrying = asyncio.create_task(link.run())
    try:
        yield link
    finally:
        await link.close()
        await carrying


def named(view: View, name: str) -> Member:
    """A member by its name. Raises NotFound, which says who is there."""
    members = {str(member.replica): member for member in view.members}
    if name not in members:
        there = ", ".join(sorted(members)) or "none"
        raise NotFound("replica_not_found", f"There is no replica {name!r}; there are: {there}.", param="replica")
    return members[name]


async def drained(directory: Leases, security: PeerSecurity, name: str) -> DrainProgress:
    """Has a replica hand everything off and returns its last report. Raises NotFound, Unavailable."""
    member = named(await members_of(directory), name)
    try:
        async with linked(security, member, "drain") as link:
            return await link.drain(asyncio.Queue())
    except LinkDown as down:
        raise unreachable(member.replica, down) from down


# -- sessions -----------------------------------------------------------------------------------------------------


async def sessions_of(directory: Leases, security: PeerSecurity, wanted: Wanted) -> Found:
    """A page of who has which session in memory, asked of the replicas themselves. Raises NotFound, Unavailable."""
    view = await members_of(directory)
    members = [named(view, wanted.replica)] if wanted.replica else list(view.members)
    after = key_of(wanted.after) if wanted.after else None
    answers = await asyncio.gather(*(_surveyed(security, member, wanted, after) for member in members))
    return found_of(wanted, {str(member.replica): each for member, each in zip(members, answers, strict=True)})


def found_of(wanted: Wanted, answers: Mapping[str, Surveyed | LinkDown]) -> Found:
    """One page of the pages that replicas gave, and who gave none."""
    pages = [answer for answer in answers.values() if isinstance(answer, Surveyed)]
    merged = sorted((each for page in pages for each in page.residents), key=lambda each: (each.key, each.replica))
    return Found(
        merged[: wanted.limit],
        sum(page.total for page in pages),
        len(merged) > wanted.limit or any(page.has_more for page in pages),
        {replica: str(answer) for replica, answer in answers.items() if isinstance(answer, LinkDown)},
    )


def key_of(text: str) -> SessionKey:
    """TENANT/SESSION. Raises BadInput."""
    tenant, slash, session = text.partition("/")
    if not slash:
        raise BadInput("invalid_setting", f"--after {text!r} is not TENANT/SESSION, as a page names its last one.")
    return SessionKey(TenantId(tenant), SessionId(session))


async def _surveyed(
    security: PeerSecurity, member: Member, wanted: Wanted, after: SessionKey | None
) -> Surveyed | LinkDown:
    try:
        async with linked(security, member, "sessions") as link:
            return await link.survey(
                after=after,
                limit=wanted.limit,
                tenant=wanted.tenant,
                session=wanted.session,
                state=wanted.state,
            )
    except LinkDown as down:
        return down


COLUMNS = ("SESSION", "OWNER", "FENCE", "STATE", "KV", "OPEN TURN", "TOP", "READERS", "WHY HERE")


def tabled(found: Found) -> str:
    """The page for people: a table, who was silent, and where the next page begins."""
    rows = [COLUMNS, *(_row(each) for each in found.residents)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines += [f"{replica} does not answer: {why}" for replica, why in found.silent.items()]
    lines.append(f"{len(found.residents)} of {found.total} sessions in memory; parked ones belong to nobody")
    if found.has_more:
        lines.append(f"next page: --after {'/'.join(found.residents[-1].key)}")
    return "\n".join(lines)


def _row(each: ResidentSession) -> tuple[str, ...]:
    state = f"{each.state} {each.idle_s:.0f} s" if each.state == "idle" else each.state
    kv = f"{each.kv_tier} {each.kv_tokens}" if each.kv_tokens else each.kv_tier
    return (
        "/".join(each.key),
        each.replica,
        str(each.fence),
        state,
        kv,
        " ".join(each.open) or "-",
        str(each.top),
        str(each.readers),
        each.reason,
    )


def in_json(found: Found) -> str:
    """The page for machines: one object."""
    return msgspec.json.encode(
        {
            "sessions": [
                {name: getattr(each, name) for name in each.__struct_fields__ if name != "key"}
                | {"tenant": each.key.tenant, "session": each.key.session}
                for each in found.residents
            ],
            "total": found.total,
            "has_more": found.has_more,
            "silent": found.silent,
        }
    ).decode()
