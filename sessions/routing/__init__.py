"""Which model a session's turns run on: the models file, the score of a turn, and the session's decision.

A scorer proposes by the turn alone; `decision` lets the session go there only between turns and where what switching
computes anew is worth it. Never reads files, clocks or engines, and moves nothing: `sessions.actor.model_router` looks
at the session, `actors.handoff.model_switch` moves it.
Start with `models_file.py`, then `decision.py`.
"""
