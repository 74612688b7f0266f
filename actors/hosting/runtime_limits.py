"""The limits of a replica's actors; what happens at each is described in `actors.hosting.runtime`."""

from __future__ import annotations

from typing import Literal

import msgspec

from sessions.actor.actor_context import ActorLimits


class RuntimeLimits(msgspec.Struct, frozen=True):
    actors_max: int = 20_000
    activations_max: int = 64
    passivations_max: int = 64  # at once; each may leave a snapshot with the journal
    recoveries_max: int = 8
    recovery_patience_s: float = 30.0  # a recovered session that writes nothing for so long gives its slot to the next
    idle_s: float = 600.0
    orphan_policy: Literal["continue", "pause", "cancel"] = "continue"
    orphan_after_s: float = 30.0
    attended_after_s: float = 10.0  # without readers an answer ends whose client's leaving would have cancelled it
    push: bool = False  # devices are told of answers that nobody reads
    actor: ActorLimits = ActorLimits()
