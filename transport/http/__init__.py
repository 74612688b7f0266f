"""HTTP: one FastAPI application on uvicorn's connections, and server-sent events.

Never keeps a conversation and never waits for a slow reader. Start at `app` (errors, CORS, routers) and `server` (the
listening port, draining); `routes` has one file for each family of paths, `context` what a handler needs of its server,
`middleware` what surrounds every request.
"""
