"""The directory: who owns which session now. A hint that is validated at the target; the journal is the authority.

Never needed for safety (I1): while it is away or emptied, owners go on, replicas announce themselves again and claim
what it has forgotten (`Announcement.rejoined`). Two implementations of `sessions.ports.Directory` pass one suite:
`memory` (one process, the simulator) and `valkey` (Valkey or Redis 7: one server, Sentinel, cluster).

Start with `rules`, which both follow; `lua/` is the same on a server.
"""

from actors.directory.common import LEASE_TTL_S, PARTITIONS, Activations, Announcement, Leases, partition_of

__all__ = ["LEASE_TTL_S", "PARTITIONS", "Activations", "Announcement", "Leases", "partition_of"]
