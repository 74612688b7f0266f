"""Who may open a peer link: whoever shows the cluster's token, or a certificate of the cluster's authority, or both.

A link carries every tenant's sessions and checks no user. Off loopback it is mutual TLS: a token alone would cross the
network in plain text, and so would all words. Who encrypts the network below says so (`insecure`) and needs a token.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from typing import Final

import grpc
import msgspec

from sessions.model.errors import BadInput
from transport.addresses import is_loopback

TOKEN_HEADER: Final = "authorization"
TOKEN_BYTES_MIN: Final = 16

Metadata = Sequence[tuple[str, str | bytes]]


class PeerCertificates(msgspec.Struct, frozen=True, kw_only=True):
    """Three PEM texts for mutual TLS: the authority that signs the peers' certificates, this process's certificate, and
    its key. All three are empty if mutual TLS is off."""

    authority: bytes = b""
    certificate: bytes = b""
    key: bytes = b""

    def __post_init__(self) -> None:
        parts = (self.authority, self.certificate, self.key)
        if any(parts) and not all(parts):
            raise BadInput("invalid_setting", "Peer TLS needs an authority, a certificate and its key.")


class PeerSecurity:
    """The credentials that a process shows at peer links, and those that it demands there."""

    def __init__(
        self,
        *,
        token: str = "",
        certificates: PeerCertificates | None = None,
        server_name: str = "",
        insecure: bool = False,
    ) -> None:
        """`token` is shared by the whole cluster. `server_name`, if set, is the name that servers' certificates are
        checked against instead of the address. Raises BadInput."""
        if token and (len(token) < TOKEN_BYTES_MIN or not token.isascii() or not token.isprintable()):
            raise BadInput(
                "invalid_setting", f"The peer token must have {TOKEN_BYTES_MIN} printable ASCII characters or more."
            )
        self.token = token
        self.certificates = certificates or PeerCertificates()
        """The certificates in force. `renew` replaces all three at once, because gRPC's threads read them at
        handshakes; links that begin later show the new ones."""
        self.server_name = server_name
        self.insecure = insecure

    @property
    def tls(self) -> bool:
        return bool(self.certificates.authority)

    def check_address(self, host: str) -> None:
        """Raises BadInput if links to `host` would not be encrypted and the settings do not allow that, so that no
        server may listen there."""
        if not self.may_cross(host):
            raise BadInput(
                "invalid_setting",
                f"peer_host = {host!r}: off loopback peer links are mutual TLS. Name the cluster's authority and this"
                " process's certificate (--peer-authority, --peer-certificate, --peer-key); where the network below"
                " encrypts already, give all members a token (SESSILE_PEER_TOKEN) and --peer-insecure.",
                param="peer_host",
            )

    def may_cross(self, host: str) -> bool:
        """Returns whether links to or from `host` are allowed: with mutual TLS always, otherwise on loopback or with
        `insecure` and a token."""
        return self.tls or is_loopback(host) or (self.insecure and bool(self.token))

    def renew(self, certificates: PeerCertificates) -> None:
        self.certificates = certificates

    def metadata(self) -> Metadata:
        return ((TOKEN_HEADER, f"Bearer {self.token}"),) if self.token else ()

    def admits(self, metadata: Metadata | None) -> bool:
        """Returns whether a caller's metadata holds the token; compares in constant time."""
        if not self.token:
            return True
        shown = next((value for name, value in metadata or () if name == TOKEN_HEADER), "")
        given = shown if isinstance(shown, bytes) else shown.encode()
        return hmac.compare_digest(given, f"Bearer {self.token}".encode())

    def server_credentials(self) -> grpc.ServerCredentials:
        """Returns the credentials of the server's port. At each handshake gRPC asks them which certificate and
        authority are in force."""
        return grpc.dynamic_ssl_server_credentials(
            self._server_pair(), self._server_pair, require_client_authentication=True
        )

    def _server_pair(self) -> grpc.ServerCertificateConfiguration:
        now = self.certificates
        return grpc.ssl_server_certificate_configuration([(now.key, now.certificate)], root_certificates=now.authority)

    def channel_credentials(self) -> grpc.ChannelCredentials:
        now = self.certificates
        return grpc.ssl_channel_credentials(now.authority, now.key, now.certificate)
