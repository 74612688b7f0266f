"""Serves every port that speaks HTTP: uvicorn's connections, middleware, server-sent events, paging, TLS.

Never knows a route, a conversation or an answer's shape. Start at `http_connection` (a connection and its bounds) and
`middleware` (what surrounds every request); `timer_wheel` has the deadlines of very many connections.
"""
