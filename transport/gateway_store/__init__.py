"""State that the gateways of a cluster share in Valkey or Redis: tickets, and the history index.

Never holds anything that a conversation needs: lost entries cost a reconnect or tokens. A single process keeps the same
in memory (`transport.auth.tickets`, `transport.history_index`), the index in its data folder too (`history_file`).
Start at `valkey`.
"""
