"""The actor: the asynchronous shell around one session's machine.

`actor.py` has the mailbox lanes, the drain and the effects; `input_pipeline`, `prompt_filter` and `admission` prepare
commands, `journal_writer` makes steps durable before anything of them is shown, `snapshots` says when state is saved.
Never decides what a command means (`sessions.machine`), nor who owns the session (`actors.hosting`).
Start with `actor.py`.
"""
