"""WebSocket connections: sockets and deadlines around `transport.protocol.connection`.

Never decides what a frame means. Start at `websocket` (one connection), then `connections` (what they share),
`upgraded` (what every kind of them does with a socket) and `handshake`. `responses_socket` is OpenAI's Responses on a
socket, with `responses_frames` and `inner_requests`, which ask the HTTP application.
"""
