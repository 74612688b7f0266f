"""Ranks a cluster's members for a session by weighted rendezvous hashing: whatever their load, alike in every process.

Each member scores -weight / ln(u), u drawn from a hash of (session, replica), and the highest score is the session's
place. A member that leaves moves only its own sessions; one that joins takes only what is now its own; a weight of 2
draws twice as much. The hash is BLAKE2b, so that every process agrees.

That is a hash for each member. Beyond `FLAT_MAX` members they stand in a tree (`RendezvousTree`): sixteen children at
each node, by the digits of a hash of the replica's name, and a session goes down by rendezvous among the children, each
weighing what is below it. The shares are the same, exactly; what leaves or joins moves at most about twice its own
share; and a place is found with some fifty hashes among ten thousand members.

Sources: Thaler and Ravishankar (1998), rendezvous hashing; Wang and Ravishankar (2009), its tree.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

from actors.directory.common import session_name
from sessions.model.types import ReplicaId, SessionKey
from sessions.ports import Member

FLAT_MAX: Final = 256
_CHILDREN: Final = 16
_DIGITS: Final = 16  # of a hash of 64 bits


def ranking(key: SessionKey, members: Collection[Member]) -> tuple[ReplicaId, ...]:
    """Returns replicas by falling score for `key`: pure rendezvous hashing, whatever their load."""
    if len(members) > FLAT_MAX:
        return tuple(RendezvousTree(members).ranked(key))
    name = session_name(key).encode()
    return tuple(member.replica for member in sorted(members, key=lambda other: (-_score(name, other), other.replica)))


class RendezvousTree:
    """The members of one version of a large view, as a tree that ranks them for many sessions."""

    def __init__(self, members: Collection[Member]) -> None:
        leaves = [_Leaf(member.replica, member.weight, _hasher(_key_of(member.replica))) for member in members]
        digits = {leaf.replica: blake2b(leaf.replica.encode(), digest_size=8).hexdigest() for leaf in leaves}
        self._root = _grown(leaves, digits, "")

    def ranked(self, key: SessionKey) -> Iterator[ReplicaId]:
        """Yields replicas by falling score, the session's place first. Each is computed only when the caller takes
        it."""
        return _walk(self._root, session_name(key).encode())


class _Leaf(NamedTuple):
    replica: ReplicaId
    weight: float
    hasher: blake2b


class _Branch(NamedTuple):
    replica: str  # its digits, only to break ties
    weight: float
    hasher: blake2b
    below: Sequence[_Leaf] | Sequence[_Branch]


def _grown(leaves: list[_Leaf], digits: dict[ReplicaId, str], path: str) -> Sequence[_Leaf] | Sequence[_Branch]:
    if len(leaves) <= _CHILDREN or len(path) == _DIGITS:
        return leaves
    children: dict[str, list[_Leaf]] = {}
    for leaf in leaves:
        children.setdefault(digits[leaf.replica][len(path)], []).append(leaf)
    return [
        _Branch(
            path + digit,
            math.fsum(leaf.weight for leaf in below),  # whatever order they come in
            _hasher(b"\0" + (path + digit).encode()),
            _grown(below, digits, path + digit),
        )
        for digit, below in children.items()
    ]


def _walk(nodes: Sequence[_Leaf] | Sequence[_Branch], name: bytes) -> Iterator[ReplicaId]:
    def order(node: _Leaf | _Branch) -> tuple[float, str]:
        hasher = node.hasher.copy()
        hasher.update(name)
        return -_weighed(hasher.digest(), node.weight), node.replica

    for node in sorted(nodes, key=order):
        if isinstance(node, _Leaf):
            yield node.replica
        else:
            yield from _walk(node.below, name)


def _score(name: bytes, member: Member) -> float:
    hasher = _hasher(_key_of(member.replica))
    hasher.update(name)
    return _weighed(hasher.digest(), member.weight)


def _weighed(digest: bytes, weight: float) -> float:
    uniform = (int.from_bytes(digest) + 0.5) / 2**64  # strictly between 0 and 1
    return weight / -math.log(uniform) if uniform < 1 else math.inf


def _hasher(key: bytes) -> blake2b:
    return blake2b(digest_size=8, key=key)


def _key_of(replica: ReplicaId) -> bytes:
    """Returns a replica's name as a BLAKE2b key. A key has at most 64 bytes, so longer names are hashed first."""
    raw = replica.encode()
    return raw if len(raw) <= 64 else blake2b(raw, digest_size=64).digest()
