"""TLS of the public ports: one chain and key for HTTPS, secure WebSockets and gRPC.

TLS 1.2 and later, with what OpenSSL holds to be good; no client certificates (peers have their own: `transport.peer`).
A certificate is read at the start; a new one comes into force with a restart, which a drain makes unnoticed.
"""

from __future__ import annotations

import ssl
import tempfile
from pathlib import Path
from typing import Final

import grpc
import msgspec

from sessions.model.errors import BadInput

HANDSHAKE_S: Final = 10.0


class ServerTls(msgspec.Struct, frozen=True, kw_only=True):
    """PEM texts that belong together: a chain, leaf first, and the leaf's key."""

    certificate: bytes
    key: bytes

    def context(self) -> ssl.SSLContext:
        """For sockets of asyncio. Raises BadInput for a pair that is none. Blocking."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        with tempfile.TemporaryDirectory() as folder:  # OpenSSL reads files only; this one is ours alone
            chain, key = Path(folder) / "chain.pem", Path(folder) / "key.pem"
            chain.write_bytes(self.certificate)
            key.touch(mode=0o600)
            key.write_bytes(self.key)
            try:
                context.load_cert_chain(chain, key, password=b"")
            except (ssl.SSLError, OSError) as error:
                raise BadInput(
                    "invalid_setting",
                    "tls_certificate and tls_key: not a PEM certificate chain and its unencrypted key"
                    f" ({getattr(error, 'reason', None) or error}).",
                    param="tls_certificate",
                ) from error
        return context

    def grpc_credentials(self) -> grpc.ServerCredentials:
        return grpc.ssl_server_credentials([(self.key, self.certificate)])


def read_server_tls(certificate: bytes, key: bytes) -> ServerTls | None:
    """None for neither. Raises BadInput for one without the other, and for what is no pair."""
    if not certificate and not key:
        return None
    if not certificate or not key:
        raise BadInput("invalid_setting", "tls_certificate and tls_key: give both or none.", param="tls_certificate")
    tls = ServerTls(certificate=certificate, key=key)
    tls.context()
    return tls
