"""Peer links on gRPC: the carrier of `actors.peer.links`, one bidirectional stream of opaque messages per link.

Never looks into a message, retries or reconnects: `actors.peer` does. Start at `client`, which dials, and `server`,
which accepts; `security` says who may open a link.
"""

from transport.peer.client import GrpcDialer
from transport.peer.security import PeerCertificates, PeerSecurity
from transport.peer.server import PeerServer

__all__ = ["GrpcDialer", "PeerCertificates", "PeerSecurity", "PeerServer"]
