"""What an operator's command line asks of a cluster: who is in it, and to empty a replica.

Speaks the peer link like everybody else in the cluster, as a peer of the kind `operator`. Does not print.
"""

from __future__ import annotations

import asyncio

from actors.directory import Leases
from actors.peer_frames import Drained
from actors.peer_link import Connector
from sessions.errors import NotFound
from sessions.ports import View
from transport.peer.client import GrpcDialer
from transport.peer.security import PeerSecurity


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


async def drained(directory: Leases, security: PeerSecurity, name: str) -> Drained:
    """Has a replica hand everything off and returns its last report. Raises NotFound, Unavailable."""
    members = {str(member.replica): member for member in (await members_of(directory)).members}
    if name not in members:
        there = ", ".join(sorted(members)) or "none"
        raise NotFound("replica_not_found", f"There is no replica {name!r}; there are: {there}.", param="replica")
    link = await Connector(GrpcDialer(security), kind="operator", name="drain")(members[name])
    carrying = asyncio.create_task(link.run())
    try:
        return await link.drain(asyncio.Queue())
    finally:
        await link.close()
        await carrying
