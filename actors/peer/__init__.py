"""The peer protocol between gateways and replicas, without its transport: frames, links, both ends.

Never opens a socket (`transport.peer` does; `memory` stands in for it in tests). Start with `links` for the ports, then
`frames`, `client` and `server`.
"""
