"""A replica's periodic work: recovery of orphaned turns, passivation, purges, erasure of end users, KV clean-up.

Never needed for correctness: each sweep may fail and is tried again. Start with `sweeps`.
"""
