"""What SQLite and PostgreSQL have in common: the journal's calls, and the views beside it.

Never names a driver: the journal is given a driver's statements; a view is given an `SqlDatabase`, reads through `rows`
and writes through a `Script`, in statements that both databases understand.
Start with `script.py`; then `journal.py`, and one module for each view.
"""
