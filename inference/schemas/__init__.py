"""JSON schemas judged in processes of their own, so that none can hold the event loop or the server's memory.

`checker` is the server's end (`ports.SchemaChecker`): it remembers judgements and passes on what it does not know.
`worker` is the process: one request at a time under limits of CPU time and memory, which end it; the next is started.
Neither ever decides what is too much for a schema: that is `sessions.model.schema_bounds`. Start with `checker`.
"""
