"""The SQLite driver: one file, one writer, a few readers.

`store.py` composes it; `database.py` has the connections and commits in groups, `transaction.py` is one such commit on
the writer's thread, `journal.py` the Journal port. Import SQLite from `library.py` only. Tables: `migrations/NNN.sql`.
"""
