"""Carries out the commands that look at a running cluster, drain a replica of it or let it serve again.

Part of the entry point. Each prints its result and returns the status to exit with.
"""

from __future__ import annotations

from actors.directory.valkey import ValkeyDirectory
from transport.cli.cluster import (
    DrainReplica,
    ListReplicas,
    ListSessions,
    UndrainReplica,
    format_members,
    format_sessions,
    sessions_as_json,
)
from transport.cli.settings import Settings
from transport.cli.start.security import peer_security
from transport.ops.operator_requests import drain, find_member, list_members, list_sessions, undrain


async def run_cluster_command(
    options: ListReplicas | ListSessions | DrainReplica | UndrainReplica, settings: Settings
) -> int:
    """Raises BadSetting, SessileError."""
    directory = ValkeyDirectory(settings.directory)
    match options:
        case ListReplicas():
            print(format_members(await list_members(directory)))
        case ListSessions():
            page = await list_sessions(directory, peer_security(settings), options.query)
            print(sessions_as_json(page) if options.as_json else format_sessions(page))
            return 1 if page.silent else 0
        case DrainReplica(name):
            last = await drain(directory, peer_security(settings), name)
            print(f"{name} is empty: {last.handed_off} sessions handed off, {last.parked} parked")
        case UndrainReplica(name):
            await undrain(peer_security(settings), find_member(await list_members(directory), name), "drain")
            print(f"{name} takes sessions again")
    return 0
