"""Backups of an SQLite journal as records: what changes is shipped to an object store, within a second.

`row_tables.py` and `change_capture.py` find what changed, `segments.py` is how it is written down (hashed, chained,
sealed), `scope_keys.py` has the keys that it is sealed with, so that what is destroyed here is unreadable there.
`shipper.py` runs beside a server; `chain_reader.py`, `verification.py` and `restore.py` read it back. Never touches
PostgreSQL, which has tools of its own. Start with `shipper.py`.
"""
