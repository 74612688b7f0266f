"""Encryption at rest: what is stored in the journal is readable with the tenant's key only.

`codec.py` seals and opens bodies, `tenant_keys.py` has the keys of each tenant, `wrapping.py` what wraps these: the
master key's file, or with `transit.py` a key service. `sweep.py` encrypts again what was stored under an older key or
none. Knows tables of keys and bodies, never what a body means. Start with `codec.py`.
"""
