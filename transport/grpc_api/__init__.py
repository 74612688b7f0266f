"""The gRPC API: the sessions of `sessile.proto` on the same gateway and the same logs as WebSocket and HTTP.

Never translates by hand what `translate` does field by field; `sessile_pb2*` are generated.
Start at `service` (unary calls and history), then `converse` (the bidirectional stream); `server` listens, `status`
maps errors.
"""
