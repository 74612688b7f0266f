"""The commands that look at a running cluster or drain a replica of it: their options, and how results are printed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from actors.maintenance.resident_states import PAGE_MAX, STATES
from transport.cli.plain_text import plain
from transport.cli.settings import BadSetting
from transport.cli.shared_flags import Json, Tenant, table, text

if TYPE_CHECKING:
    from actors.peer.frames import ResidentSession
    from sessions.ports import View
    from transport.ops.operator_requests import SessionPage, SessionQuery

TITLES: Final = ("SESSION", "OWNER", "FENCE", "STATE", "KV", "OPEN TURN", "TOP", "READERS", "WHY HERE")


class ListReplicas(msgspec.Struct, frozen=True, kw_only=True):
    """Shows the replicas of a cluster."""


class ListSessions(msgspec.Struct, frozen=True, kw_only=True):
    """Shows the sessions that are in a replica's memory: who owns them, and why.

    Under which fence, in which state, where their KV is, which answers are open, and why they are there: new, woken,
    handed off or taken over, and which choice of placement's hash the replica is. A parked session is in no memory;
    the next command to it wakes it.
    """

    replica: Annotated[str, text("REPLICA", "only those that this one has")] = ""
    tenant: Tenant = ""
    session: Annotated[str, text("SESSION", "only this one")] = ""
    state: Annotated[str, text("STATE", "only those in this state", choices=STATES)] = ""
    limit: Annotated[int, text("N", f"sessions of a page, at most {PAGE_MAX} [default: 50]")] = 50
    after: Annotated[str, text("TENANT/SESSION", "the page behind this one")] = ""
    as_json: Json = False

    def __post_init__(self) -> None:
        """Raises BadSetting for a limit that is not allowed."""
        if not 1 <= self.limit <= PAGE_MAX:
            raise BadSetting(f"limit = {self.limit}: at least 1, at most {PAGE_MAX}")

    @property
    def query(self) -> SessionQuery:
        from transport.ops.operator_requests import SessionQuery

        return SessionQuery(**{name: getattr(self, name) for name in SessionQuery.__struct_fields__})


class DrainReplica(msgspec.Struct, frozen=True):
    """Moves every session off a replica, and waits until it is empty."""

    replica: Annotated[str, text("REPLICA", "its name, as `replicas` shows it")]


class UndrainReplica(msgspec.Struct, frozen=True):
    """Ends a drain: the replica takes sessions again. Sessions that have left it stay where they are."""

    replica: Annotated[str, text("REPLICA", "its name, as `replicas` shows it")]


def format_members(view: View) -> str:
    """Returns a line about the view and one for each member."""
    lines = [f"view {view.version}, {len(view.members)} replicas"]
    for member in view.members:
        state = "draining" if member.draining else "serving"
        lines.append(plain(f"{member.replica}  {state}  load {member.load:.2f}  {member.address}  {member.model}"))
    return "\n".join(lines)


def format_sessions(page: SessionPage) -> str:
    """Returns a page as text: a table, the silent replicas, and where the next page begins."""
    lines = [table([TITLES, *map(_row, page.residents)])]
    lines += [plain(f"{replica} does not answer: {why}") for replica, why in page.silent.items()]
    lines.append(f"{len(page.residents)} of {page.total} sessions in memory; parked ones belong to nobody")
    if page.has_more:
        lines.append(f"next page: --after {'/'.join(page.residents[-1].key)}")
    return "\n".join(lines)


def _row(each: ResidentSession) -> tuple[str, ...]:
    state = f"{each.state} {each.idle_s:.0f} s" if each.state == "idle" else each.state
    kv = f"{each.kv_tier} {each.kv_tokens}" if each.kv_tokens else each.kv_tier
    return (
        *("/".join(each.key), each.replica, str(each.fence), state, kv, " ".join(each.open) or "-"),
        *(str(each.top), str(each.readers), each.reason),
    )


def sessions_as_json(page: SessionPage) -> str:
    """Returns a page as one JSON object."""
    from transport.ops.operator_api import resident_shown

    shown = {"sessions": [resident_shown(each) for each in page.residents], "total": page.total}
    return msgspec.json.encode({**shown, "has_more": page.has_more, "silent": page.silent}).decode()
