"""`python app.py replicas|sessions|drain`: what operators ask of a running cluster, printed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transport.cli.operator import Wanted, described, drained, in_json, members_of, sessions_of, tabled
from transport.cli.security import peer_security
from transport.cli.settings import Settings

if TYPE_CHECKING:
    from actors.directory.valkey import ValkeyDirectory


def directory_of(settings: Settings) -> ValkeyDirectory:
    """Imported when it is wanted: a start on one machine has no half second to spare for redis' client."""
    from actors.directory.valkey import ValkeyDirectory

    return ValkeyDirectory(settings.directory)


def turns_at(settings: Settings) -> Any:
    """The directory's server, for what a cluster's processes do in turns; None where there is no cluster."""
    if not settings.directory:
        return None
    from actors.directory.address import connect

    return connect(settings.directory)


async def show_replicas(settings: Settings) -> int:
    """Prints the cluster's members."""
    print(described(await members_of(directory_of(settings))))
    return 0


async def show_sessions(settings: Settings, wanted: Wanted, *, as_json: bool) -> int:
    """Prints a page of who has which session, and why."""
    security = peer_security(settings)
    found = await sessions_of(directory_of(settings), security, wanted)
    print(in_json(found) if as_json else tabled(found))
    return 1 if found.silent else 0


async def drain_replica(settings: Settings, name: str) -> int:
    """Tells a replica to hand everything off, and waits until it has."""
    last = await drained(directory_of(settings), peer_security(settings), name)
    print(f"{name} is empty: {last.handed_off} sessions handed off, {last.parked} parked")
    return 0
