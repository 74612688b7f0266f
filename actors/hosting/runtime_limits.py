"""The limits of a replica's actors; what happens at each is described in `actors.hosting.runtime`."""

from __future__ import annotations

from typing import Literal

import msgspec

from sessions.actor.actor_context import ActorLimits


class RuntimeLimits(msgspec.Struct, frozen=True):
    actors_max: int = 20_000
    activations_max: int = 64
    passivations_max: int = 64  # at the same time; each may write a snapshot
    recoveries_max: int = 8
    recovery_patience_s: float = 30.0  # after which a recovered session that wrote nothing gives up its slot
    idle_s: float = 600.0
    orphan_policy: Literal["continue", "pause", "cancel"] = "continue"
    orphan_after_s: float = 30.0
    attended_after_s: float = 10.0  # an attended answer without readers is cancelled after so long
    push: bool = False  # whether devices are told of answers that nobody reads
    actor: ActorLimits = ActorLimits()
