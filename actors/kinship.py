"""Whether a replica may join those that are there: sessions move between replicas, so they must be of one kind.

Replicas of one model carry each other's sessions: their weights and tokenizers are the same, or an answer would go on
with another model's words. All processes speak one peer protocol. A replica that differs is refused before it announces
itself, with what differs; another model takes another name. (Both ends of a link look again: `actors.peer_host`.)
"""

from __future__ import annotations

from sessions.errors import BadInput
from sessions.ports import Member, View


def check_kinship(joining: Member, view: View) -> None:
    """Raises BadInput when `joining` cannot be a member beside those of `view`. Its own former process is no matter."""
    for other in view.members:
        if other.replica != joining.replica:
            different = difference(joining, other)
            if different is not None:
                raise BadInput("replica_differs", f"{joining.replica} cannot join {other.replica}: {different}.")


def difference(joining: Member, other: Member) -> str | None:
    """What keeps two replicas from being of one cluster; None: nothing."""
    if joining.protocol != other.protocol:
        return f"it speaks peer protocol {joining.protocol}, {other.replica} speaks {other.protocol}"
    if joining.model != other.model or joining.fingerprint == other.fingerprint:
        return None
    mine, its = joining.fingerprint.split("/"), other.fingerprint.split("/")
    parts = [
        f"its {name} is {one}, that of {other.replica} is {another}"
        for name, one, another in zip(("model", "tokenizer"), mine, its, strict=False)
        if one != another
    ] or [f"its fingerprint is {joining.fingerprint}, that of {other.replica} is {other.fingerprint}"]
    return f"both serve {joining.model!r}, but " + " and ".join(parts)
