"""The pure state machine of one session: `step(state, input) -> records, answer, effects`.

`machine.py` dispatches inputs; `message_commands`, `turn_commands`, `session_commands` and `appeals` apply commands,
`responses` begins and ends answers, `state` folds the log. All are functions over one `StepBuilder`. Never waits, reads
a clock, draws by chance or writes a log line; import-linter checks that. Start with `machine.py`, then `state.py` and
`responses.py`.
"""
