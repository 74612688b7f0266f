"""Reading logs: live feeds with many cursors, pages of the journal, and how a reader resumes.

Never claims a session, never wakes an actor, never buffers for a slow reader. Start at `feeds` (the tail of a live log
and its readers), then `log_reader` (resume plans, pages, states) and `reader_set` (all that one connection reads).
"""
