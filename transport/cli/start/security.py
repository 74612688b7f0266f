"""Certificates and secrets that settings name: what peers show each other, what the public doors show clients.

Reads the files, and reads them again when they change; what they are good for is not known here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sessions.file_watcher import FileWatcher
from sessions.model.errors import BadInput
from sessions.setting_files import reason
from transport.cli.settings import BadSetting, Settings
from transport.http.tls import ServerTls, read_server_tls

if TYPE_CHECKING:  # gRPC is loaded only where there are peers
    from transport.peer import PeerCertificates, PeerSecurity

T = TypeVar("T")


def pem(settings: Settings, name: str) -> bytes:
    """Returns the content of the PEM file that a setting names; empty if it names none. Raises BadSetting."""
    path = getattr(settings, name)
    try:
        return Path(path).read_bytes() if path else b""
    except OSError as error:
        raise BadSetting(f"{name} = {path!r}: {reason(error)}") from error


def peer_security(settings: Settings) -> PeerSecurity:
    """Reads the certificate and the token with which the processes of a cluster know each other. Raises BadSetting,
    BadInput."""
    from transport.peer import PeerSecurity

    return PeerSecurity(
        token=settings.peer_token,
        certificates=peer_certificates(settings),
        server_name=settings.peer_server_name,
        insecure=settings.peer_insecure,
    )


def peer_certificates(settings: Settings) -> PeerCertificates:
    """Reads the three PEM files that the settings of peer links name. Raises BadSetting if one cannot be read,
    BadInput."""
    from transport.peer import PeerCertificates

    return PeerCertificates(
        authority=pem(settings, "peer_authority"),
        certificate=pem(settings, "peer_certificate"),
        key=pem(settings, "peer_key"),
    )


def tls_of(settings: Settings) -> ServerTls | None:
    """Reads the certificate of the public doors; returns None if the settings name none. Raises BadSetting,
    BadInput."""
    return read_server_tls(pem(settings, "tls_certificate"), pem(settings, "tls_key"))


def certificate_watchers(
    settings: Settings, tls: ServerTls | None = None, security: PeerSecurity | None = None
) -> list[FileWatcher[Any]]:
    """Returns the watchers of the certificates' files; `tls` and `security` are the certificates as read at the start.
    A watcher puts changed files in force, also if they changed since that reading. Files that do not fit together, as
    while only one of two has been replaced, change nothing and are logged. Raises BadSetting, BadInput."""
    watchers: list[FileWatcher[Any]] = []
    if tls is not None:

        def read_tls(_: Path) -> ServerTls:
            return ServerTls(certificate=pem(settings, "tls_certificate"), key=pem(settings, "tls_key"))

        watchers.append(_watcher(settings, "tls", read_tls, tls.replace))
    if security is not None and security.tls:

        def read_peer(_: Path) -> PeerCertificates:
            new = peer_certificates(settings)
            read_server_tls(new.certificate, new.key)  # gRPC itself would fail at the handshake only
            return new

        watchers.append(_watcher(settings, "peer", read_peer, security.renew))
    return watchers


def _watcher(settings: Settings, prefix: str, read: Callable[[Path], T], put: Callable[[T], None]) -> FileWatcher[T]:
    """Returns the watcher of a certificate's files, after it has read them once and handed the result to `put`."""

    async def take(new: T) -> None:
        put(new)

    beside = [getattr(settings, name, "") for name in (f"{prefix}_key", f"{prefix}_authority")]
    watcher = FileWatcher(
        getattr(settings, f"{prefix}_certificate"),
        read,
        take,
        what=f"{prefix}_certificate",
        refused=(BadSetting, BadInput),
        beside=[path for path in beside if path],
    )
    put(watcher.first())
    return watcher
