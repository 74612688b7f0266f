"""OpenAI's HTTP API on the log: what its requests ask of sessions, and how the log's events look in its shapes.

    request ──> wanted (wire → items, sampling) ──> places (which session) ──> turn.create ──> LogCursor ──> chunks

The routes in `transport.http.routes` are thin: they parse, call in here and answer. Nothing here keeps a conversation.
"""
