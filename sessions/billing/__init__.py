"""Usage and its price: rows, queries over them, price lists, and their reconciliation with the logs.

The rows themselves are written with the terminal event of each response (`sessions.machine.responses`).
Never charges anybody, stores a row or reads a file: stores are in `persistence`.
Start with `metering.py`, then `prices.py`.
"""
