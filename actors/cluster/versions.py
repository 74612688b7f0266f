"""Decides which peer protocol two processes speak with each other, and refuses one that is too far away, in a sentence.

Each process speaks a range of protocols, oldest to newest: its own release's and its neighbours'. Two that are one
release apart share at least one and speak the newest that both know; two that share none are refused by the one that
came second. A process from before there were ranges names one number, and speaks only that one. What a range means for
those who upgrade is in docs/upgrading.md.
"""

from __future__ import annotations

from actors.peer.frames import PEER_PROTOCOL, PEER_PROTOCOL_OLDEST
from sessions.ports import Member

ProtocolRange = tuple[int, int]  # the oldest and the newest protocol that a process speaks

OURS: ProtocolRange = (PEER_PROTOCOL_OLDEST, PEER_PROTOCOL)


def protocols_of(member: Member) -> ProtocolRange:
    """Returns the protocols that a member speaks, by its announcement."""
    return member.protocols or (member.protocol, member.protocol)


def common_protocol(one: ProtocolRange, other: ProtocolRange) -> int | None:
    """Returns the newest protocol that both speak; None if there is none."""
    newest = min(one[1], other[1])
    return newest if newest >= max(one[0], other[0]) else None


def protocol_mismatch(name: str, speaks: ProtocolRange, other: str, other_speaks: ProtocolRange) -> str | None:
    """Returns why two processes cannot talk, as a clause about the first one; None if they can. `name` and `other` are
    what the two are called in it."""
    if common_protocol(speaks, other_speaks) is not None:
        return None
    older = name if speaks[1] < other_speaks[0] else other
    both = f"{name} speaks {_phrase(speaks)}, {other} speaks {_phrase(other_speaks)}"
    return f"{both}: they are more than one release apart; upgrade {older} first, one release at a time"


def _phrase(speaks: ProtocolRange) -> str:
    oldest, newest = speaks
    return f"peer protocol {oldest}" if oldest == newest else f"peer protocols {oldest} to {newest}"
