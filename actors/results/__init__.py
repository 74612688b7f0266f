"""Cached answers of deterministic requests (`sessions.turn.result_cache.ResultCache`): in memory, and on Valkey for a
cluster, under keys of their tenants.

Never decides which requests may have a cached answer, nor what the name of one is made from
(`sessions.turn.result_cache` does). Start with `cache`; `store` and `valkey` hold sealed bytes, `results.lua` bounds
them.
"""
