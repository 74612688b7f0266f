"""The limits of a gateway's router; what happens at each is described where it is used."""

from __future__ import annotations

import msgspec

from actors.peer.links import LinkLimits


class SubscriptionLimits(msgspec.Struct, frozen=True):
    workers: int = 32
    takeovers: int = 256  # under way at the same time
    register_at_once: int = 1000
    again_min_s: float = 0.05
    again_max_s: float = 2.0


class RouterLimits(msgspec.Struct, frozen=True):
    patience_s: float = 20.0  # how long a command is tried before its sender gets an error
    pause_min_s: float = 0.01
    pause_max_s: float = 0.25
    view_s: float = 1.0
    owners_max: int = 100_000
    links_ahead: int = 64  # replicas that are dialed before a command or a reader needs them
    lease_ttl_s: float = 6.0
    links: LinkLimits = LinkLimits()
    watches: SubscriptionLimits = SubscriptionLimits()
