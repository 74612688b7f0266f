"""Every edge of a server: what clients and operators connect to, and how they are let in, limited and answered.

    bytes ─> websocket · http · grpc_api ─> gateway ─> Sessions (actors)
                                              └─────> Journal (reading only), through `reading`

Never decides what a session does: that is `sessions`. Imports only `sessions` and `actors`; `app.py` wires it.
Start at `gateway` (what every client may do), then `protocol` (the WebSocket protocol without I/O), then the edge of
your interest; `openai` has the shapes of OpenAI's API, `auth` who may come in, `ops` metrics, audit and operators.
`errors` is the one table of error codes: the HTTP status, gRPC status and WebSocket close code of each.
"""
