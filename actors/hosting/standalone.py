"""A replica that is alone: the one member of its own process's directory."""

from __future__ import annotations

import asyncio
from typing import Final

from actors.hosting.ownership import Identity
from sessions.ports import Directory, Engine, Member

ANNOUNCE_S: Final = 2.0


def standalone_member(identity: Identity, engine: Engine, fingerprint: str, version: str = "") -> Member:
    return Member(
        replica=identity.replica,
        incarnation=identity.incarnation,
        address="",
        model=engine.info.model,
        fingerprint=fingerprint,
        version=version,
        engine=engine.info,
    )


async def announce_periodically(directory: Directory, member: Member) -> None:
    """Announces a member periodically, which renews its lease, until cancelled."""
    while True:
        await directory.announce(member)
        await asyncio.sleep(ANNOUNCE_S)
