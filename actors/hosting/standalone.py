"""A replica that is all there is: the one member of its own process's directory."""

from __future__ import annotations

import asyncio
from typing import Final

from actors.hosting.runtime import Runtime
from sessions.ports import Directory, Engine, Member

ANNOUNCE_S: Final = 2.0


def standalone_member(runtime: Runtime, engine: Engine, fingerprint: str) -> Member:
    return Member(
        replica=runtime.replica,
        incarnation=runtime.incarnation,
        address="",
        model=engine.info.model,
        fingerprint=fingerprint,
        engine=engine.info,
    )


async def announce_periodically(directory: Directory, member: Member) -> None:
    """Renews the lease until it is cancelled."""
    while True:
        await directory.announce(member)
        await asyncio.sleep(ANNOUNCE_S)
