"""Cold sessions of an SQLite journal in an object store: a stub stays, and the first touch brings the log back.

`cold_sessions.py` moves one session there and back, `archiver.py` chooses which and gives the file's space back. Nobody
above the journal knows of it. Start with `cold_sessions.py`.
"""
