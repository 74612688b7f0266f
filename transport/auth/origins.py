"""Decides which web pages (Origin) and host names (Host) may use this server, and whose word on addresses counts.

Without keys a server answers on loopback names only, so that a foreign page cannot reach it through a name that it
points at this machine (DNS rebinding). A browser says in `Origin` which page a request is from; programs send none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import SplitResult, urlsplit

from sessions.model.errors import BadInput, Forbidden
from transport.addresses import is_loopback
from transport.auth.client_addresses import TrustedProxies

_PORTS: Final = {"http": 80, "https": 443}
_ORIGIN: Final = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@\s]+")

CSRF_HEADER: Final = "x-sessile-csrf"
"""A header that our own pages send, with any value, on requests with a cookie that change something. Forms and pages of
other sites cannot send it (CORS)."""


class OriginPolicy:
    """The origins and hosts that may use this server. `allowed` are origins as browsers write them
    ("https://chat.example"), "*" for all; `hosts` are allowed besides loopback names; `proxies` may name addresses."""

    def __init__(
        self, allowed: Iterable[str] = (), *, hosts: Iterable[str] = (), proxies: TrustedProxies | None = None
    ) -> None:
        """Raises BadInput for an origin that no browser sends, such as a name without its scheme."""
        self.proxies = proxies or TrustedProxies()
        self._allowed = {origin.rstrip("/").lower() for origin in allowed}
        for origin in self._allowed:
            if origin not in ("*", "null") and not _ORIGIN.fullmatch(origin):
                problem = f"origins: {origin!r} is no origin, such as https://chat.example or http://localhost:3000."
                raise BadInput("invalid_setting", problem, param="origins")
        self._hosts = {host.lower() for host in hosts}

    @property
    def allowed(self) -> tuple[str, ...]:
        """The origins of foreign pages that may use this server from a browser."""
        return tuple(sorted(self._allowed))

    def check_host(self, host: str | None) -> None:
        """Raises Forbidden if a server without keys must not answer under this Host header."""
        name = _split(f"//{host}").hostname if host and "/" not in host else None
        if name is None or not (is_loopback(name) or name in self._hosts):
            raise Forbidden("forbidden", "Without keys this server answers on loopback names only.")

    def check_origin(self, origin: str | None, host: str | None) -> None:
        """Raises Forbidden for a page of another origin that is not allowed."""
        if origin is None or "*" in self._allowed or origin.lower() in self._allowed:
            return
        parts = _split(origin.lower())
        port = _PORTS.get(parts.scheme)
        if host is not None and port is not None and _with_port(parts.netloc, port) == _with_port(host.lower(), port):
            return
        raise Forbidden(
            "forbidden",
            "This page may not connect: its origin is not this server's own address, nor one of --origins.",
        )


def _with_port(place: str, default: int) -> str:
    """Returns a host with its port, because an origin is the same with and without the default port (RFC 6454)."""
    return place if re.search(r":\d+$", place) else f"{place}:{default}"


def _split(url: str) -> SplitResult:
    """Splits an untrusted URL; an invalid one has empty parts."""
    try:
        return urlsplit(url)
    except ValueError:
        return SplitResult("", "", "", "", "")
