"""One turn's generation: from the prompt of a response to released, filtered output.

`ledger` and `context_fitting` make the prompt, `attempts` runs the engine, `output_pipeline`, the filters and
`tool_call_parser` decide what may be released, `output_accumulator` rolls it up until the actor takes it.
Never writes to the log or changes a session's state: it reports to its actor.
Start with `generation_task.py`.
"""
