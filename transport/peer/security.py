"""Who may open a peer link: whoever shows the cluster's token, or a certificate of the cluster's authority, or both.

Without either, a peer link listens on loopback only: it carries every tenant's sessions and checks no user.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from typing import Final

import grpc
import msgspec

from sessions.model.errors import BadInput
from transport.auth.origins import is_loopback

TOKEN_HEADER: Final = "authorization"
TOKEN_BYTES_MIN: Final = 16

Metadata = Sequence[tuple[str, str | bytes]]


class PeerSecurity(msgspec.Struct, frozen=True, kw_only=True):
    """`token` is shared by the whole cluster. The three PEM texts belong together: mutual TLS under `authority`.
    `server_name`, if set, is the name that servers' certificates are checked against instead of the address."""

    token: str = ""
    authority: bytes = b""
    certificate: bytes = b""
    key: bytes = b""
    server_name: str = ""

    def __post_init__(self) -> None:
        parts = (self.authority, self.certificate, self.key)
        if any(parts) and not all(parts):
            raise BadInput("invalid_setting", "Peer TLS needs an authority, a certificate and its key.")
        token = self.token
        if token and (len(token) < TOKEN_BYTES_MIN or not token.isascii() or not token.isprintable()):
            raise BadInput(
                "invalid_setting", f"The peer token must have {TOKEN_BYTES_MIN} printable ASCII characters or more."
            )

    @property
    def tls(self) -> bool:
        return bool(self.authority)

    def check_address(self, host: str) -> None:
        """Raises BadInput when a server with this security must not listen there."""
        if not self.token and not self.tls and not is_loopback(host):
            raise BadInput(
                "invalid_setting",
                f"A peer link on {host!r} needs a token or TLS: without either it listens on loopback only.",
                param="peer_host",
            )

    def metadata(self) -> Metadata:
        return ((TOKEN_HEADER, f"Bearer {self.token}"),) if self.token else ()

    def admits(self, metadata: Metadata | None) -> bool:
        """Whether a caller with this metadata has shown the token, in constant time."""
        if not self.token:
            return True
        shown = next((value for name, value in metadata or () if name == TOKEN_HEADER), "")
        given = shown if isinstance(shown, bytes) else shown.encode()
        return hmac.compare_digest(given, f"Bearer {self.token}".encode())

    def server_credentials(self) -> grpc.ServerCredentials:
        return grpc.ssl_server_credentials(
            [(self.key, self.certificate)], root_certificates=self.authority, require_client_auth=True
        )

    def channel_credentials(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(self.authority, self.key, self.certificate)
