"""Certificates and secrets that settings name: what peers show each other, what the public doors show clients.

Reads the files; what they are good for is not known here.
"""

from __future__ import annotations

from pathlib import Path

from transport.cli.settings import BadSetting, Settings
from transport.http.tls import ServerTls, read_server_tls
from transport.peer import PeerSecurity


def pem(settings: Settings, name: str) -> bytes:
    """The file that a setting names. Raises BadSetting."""
    path = getattr(settings, name)
    try:
        return Path(path).read_bytes() if path else b""
    except OSError as error:
        raise BadSetting(f"{name} = {path!r}: {error}") from error


def peer_security(settings: Settings) -> PeerSecurity:
    """What processes of a cluster show each other. Raises BadSetting, BadInput."""
    return PeerSecurity(
        token=settings.peer_token,
        authority=pem(settings, "peer_authority"),
        certificate=pem(settings, "peer_certificate"),
        key=pem(settings, "peer_key"),
        server_name=settings.peer_server_name,
    )


def tls_of(settings: Settings) -> ServerTls | None:
    """The public doors' certificate, where they have one. Raises BadSetting, BadInput."""
    return read_server_tls(pem(settings, "tls_certificate"), pem(settings, "tls_key"))
