"""The driver in memory: every contract without a disk, for tests, trials and the simulator.

`database.py` holds the tables, which are SQLite's, and may be shared; `journal.py` is one process's way to them,
through a `Medium` that may fail. Never slow, never durable.
"""
