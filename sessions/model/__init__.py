"""The vocabulary: ids, items, commands, events, errors, journal rows, verdicts, keys, reviews, audit rows.

Frozen structs and pure functions over them; what they mean to a session is decided in `sessions.machine`.
Never waits, reads a clock or draws by chance, and imports nothing else of ours.
Start with `types.py`, then `commands.py` (every command with its fields, as clients send it) and `events.py` (what the
log holds).
"""
