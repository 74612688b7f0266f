"""What a replica knows of its cluster: its lease and the view, where cold sessions are placed, who may join.

Never holds sessions. Start with `membership`; `placement` is pure, `previous_owner` guards against a directory that
has forgotten owners.
"""
