"""The HTTP API: one FastAPI application, what stands in front of it, and its listening port.

Never keeps a conversation and never waits for a slow reader. Start at `app` (errors, CORS, routers) and `server` (the
listening port, draining); `routes` has one file for each family of paths, `context` what a handler needs of its server,
`credential_gate` says who is let in before anything is parsed.
"""
