"""KV outside the device: one snapshot format for every engine, and the bounded tiers that snapshots travel through.

It never decides when saving is worth it, and never knows an engine's payload: a snapshot that is lost, late or damaged
is recomputed (I6). Start with `tiers` (the whole, one per engine); below it `host_tier` owns room and files, `disk` and
`redis` are tiers below, `catalog` finds snapshots, `promotion` reads them up, `tenant_quota` bounds tenants.
`envelope` is the format, `encryption` what lies at rest. What is evicted first: `eviction_rank` (how likely a session
returns) and `cost` (what a restore saves), joined in `snapshot_worth`.
"""
