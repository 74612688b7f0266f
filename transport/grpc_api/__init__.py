"""The gRPC door: the sessions of `sessile.proto` on the same gateway and the same logs as WebSocket and HTTP."""

from transport.grpc_api.server import GrpcServer

__all__ = ["GrpcServer"]
