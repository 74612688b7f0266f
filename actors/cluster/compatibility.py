"""Decides whether a replica may join those that are there: sessions move between replicas, so they must be of one kind.

Replicas of one model carry each other's sessions, so their weights and tokenizers must be the same, or an answer would
go on with another model's words; the smaller model that each has for brownout must be the same too, if any has one. All
processes share a peer protocol (`actors.cluster.versions`). A replica that differs is refused before it announces
itself, and the error says what differs; another model takes another name. (Both ends of a link check again:
`actors.peer.server`.)
"""

from __future__ import annotations

from itertools import zip_longest

from actors.cluster.versions import protocol_mismatch, protocols_of
from sessions.model.errors import BadInput
from sessions.ports import Engine, Member, View


def fingerprint_of(engine: Engine) -> str:
    """Returns the fingerprints of model, tokenizer and smaller model (if any) in one text. Sessions move only between
    replicas whose texts are equal."""
    own, smaller = f"{engine.info.model_fingerprint}/{engine.tokenizer.fingerprint}", engine.info.smaller
    return own if smaller is None else f"{own}/{smaller.model} {smaller.model_fingerprint}"


def check_compatibility(joining: Member, view: View) -> None:
    """Raises BadInput if `joining` cannot be a member beside those of `view`. An earlier process of the same replica is
    not compared."""
    for other in view.members:
        if other.replica != joining.replica:
            different = difference(joining, other)
            if different is not None:
                raise BadInput("replica_differs", f"{joining.replica} cannot join {other.replica}: {different}.")


def difference(joining: Member, other: Member) -> str | None:
    """Returns why two replicas cannot be in one cluster; None if they can."""
    apart = protocol_mismatch("it", protocols_of(joining), other.replica, protocols_of(other))
    if apart is not None:
        return apart
    if joining.model != other.model or joining.fingerprint == other.fingerprint:
        return None
    mine, its = joining.fingerprint.split("/", 2), other.fingerprint.split("/", 2)
    parts = [
        f"its {name} is {one or 'none'}, that of {other.replica} is {another or 'none'}"
        for name, one, another in zip_longest(("model", "tokenizer", "smaller model"), mine, its)
        if one != another and min(len(mine), len(its)) >= 2
    ] or [f"its fingerprint is {joining.fingerprint}, that of {other.replica} is {other.fingerprint}"]
    return f"both serve {joining.model!r}, but " + " and ".join(parts)
