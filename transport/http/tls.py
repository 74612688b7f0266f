"""TLS of the public ports: one chain and key for HTTPS, secure WebSockets and gRPC.

TLS 1.2 and later, with what OpenSSL holds to be good; no client certificates (peers have their own: `transport.peer`).
A new certificate comes into force without a restart; connections that are open keep the one that they began with.
"""

from __future__ import annotations

import ssl
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sessions.model.errors import BadInput

if TYPE_CHECKING:  # loaded only where there is a port for it
    import grpc

HANDSHAKE_S: Final = 10.0


class ServerTls:
    """The certificate of the public doors. `replace` changes it for connections that begin later."""

    def __init__(self, *, certificate: bytes, key: bytes) -> None:
        """`certificate` is a PEM chain, leaf first, `key` the leaf's PEM key. Raises BadInput if they do not belong
        together. Blocking."""
        self._pair = (key, certificate)  # one value: gRPC reads it in threads of its own
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._context.set_alpn_protocols(["http/1.1"])
        self._load()

    def context(self) -> ssl.SSLContext:
        """Returns the context for asyncio's sockets; the same object also after `replace`."""
        return self._context

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """Returns the credentials for gRPC's port, which asks at each handshake which certificate is in force."""
        import grpc

        return grpc.dynamic_ssl_server_credentials(self._grpc_pair(), self._grpc_pair)

    def replace(self, new: ServerTls) -> None:
        self._pair = new._pair
        self._load()

    def _grpc_pair(self) -> grpc.ServerCertificateConfiguration:
        import grpc

        return grpc.ssl_server_certificate_configuration([self._pair])

    def _load(self) -> None:
        key_text, certificate = self._pair
        with tempfile.TemporaryDirectory() as folder:  # OpenSSL reads files only; this one is ours alone
            chain, key = Path(folder) / "chain.pem", Path(folder) / "key.pem"
            chain.write_bytes(certificate)
            key.touch(mode=0o600)
            key.write_bytes(key_text)
            try:
                self._context.load_cert_chain(chain, key, password=b"")
            except (ssl.SSLError, OSError) as error:
                raise BadInput(
                    "invalid_setting",
                    "tls_certificate and tls_key: not a PEM certificate chain and its unencrypted key"
                    f" ({getattr(error, 'reason', None) or error}).",
                    param="tls_certificate",
                ) from error


def read_server_tls(certificate: bytes, key: bytes) -> ServerTls | None:
    """Returns the certificate of two PEM texts; None if both are empty. Raises BadInput if only one is, or they do not
    belong together."""
    if not certificate and not key:
        return None
    if not certificate or not key:
        raise BadInput("invalid_setting", "tls_certificate and tls_key: give both or none.", param="tls_certificate")
    return ServerTls(certificate=certificate, key=key)
