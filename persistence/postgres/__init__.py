"""The PostgreSQL driver: one schema that any number of processes share.

`store.py` composes it; `database.py` has the connections and commits in groups, `journal.py` is the Journal port,
`incarnation.py` notices that the database went back in time. Tables: `migrations/NNN.sql`.
"""
