"""Every edge: the client protocol and its shells, HTTP, access, limits, and the feeds that readers read from.

    bytes ── websocket ──> protocol ──> channel ──> gateway ──> Sessions (actors)
                                          │            └──────> Journal (reading only)
                                          └─ feeds: tails of live logs, one per session, many cursors

Imports `sessions` and nothing else of ours; `app.py` puts it together with the rest.
"""
