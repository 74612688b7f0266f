"""WebSocket connections: sockets and deadlines around `transport.protocol.connection`.

Never decides what a frame means. Start at `websocket` (one connection), then `connections` (what they share) and
`handshake`; `timer_wheel` has the deadlines of very many, `connection_rate` paces reconnect storms.
"""
