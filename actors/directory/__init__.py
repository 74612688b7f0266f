"""The directory: who owns which session now.

A hint that is validated at the target, never the authority (the journal is). Two implementations of the port
`sessions.ports.Directory` follow the same rules and pass the same suite (`tests/contract/test_directory.py`):

* `memory.MemoryDirectory`: inside one process, and under virtual time in the simulator;
* `valkey.ValkeyDirectory`: on Valkey or Redis 7, alone, behind Sentinel, or as a cluster.

What both keep:

* a lease per replica, with the number of its join (its generation). A session's entry counts only while the lease
  that it was claimed under is alive, so giving a lease back gives every session back, and nothing has to be renewed
  per session;
* a view of the live members whose version only grows, over a loss of everything too, because every caller brings
  the highest version that it has seen;
* which gateways read which session, until it lapses.

What happens when it is lost or emptied: owners go on (the journal fences them), replicas announce themselves again,
and learn from the answer (`Announcement.rejoined`) for which partitions they must claim their sessions again.
"""

from actors.directory.common import (
    LEASE_TTL_S,
    PARTITIONS,
    Activations,
    Announcement,
    Leases,
    partition_of,
)

__all__ = ["LEASE_TTL_S", "PARTITIONS", "Activations", "Announcement", "Leases", "partition_of"]
