"""Who owns which session, and where: hosting of actors, the directory, routing, hand-off, links between processes.

Never knows clients, HTTP or model files; the journal and the engine come in as ports (`sessions.ports`). The journal
alone decides ownership (I1); everything here may be stale or lost. Start with `replica` (a replica, composed), then
`hosting.runtime`, and `routing.router` for a gateway.
"""
