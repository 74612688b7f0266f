"""What SQLite and PostgreSQL have in common: the views beside the journal, in statements that both understand.

Never names a driver: a view is given an `SqlDatabase`, reads through `rows` and writes through a `Script`.
Start with `script.py`; then one module for each view.
"""
