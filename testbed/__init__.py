"""Real processes, servers and clients that tests and benches start and drive: Sessile itself, alone and as a cluster,
PostgreSQL and Valkey, a fault proxy, a plain client, and files that strangers upload.

It imports neither tests nor benches, and judges nothing by a clock. Start at `server_process` or `chaos.cluster`.
"""
