"""Spells addresses: hosts with and without the brackets of IPv6 literals, and both families behind `::`."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Final

from sessions.model.errors import BadInput

ANY_V6: Final = "::"
ANY: Final = (ANY_V6, "0.0.0.0")


def bare_host(host: str) -> str:
    """Returns a host without the brackets that an IPv6 literal may be given in."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def joined(host: str, port: int) -> str:
    """Returns `host:port`, with brackets around an IPv6 literal."""
    host = bare_host(host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listened_hosts(host: str) -> Sequence[str]:
    """Returns the hosts to listen on: for `::` the wildcard addresses of IPv6 and IPv4, otherwise `host` alone, without
    brackets."""
    bare = bare_host(host)
    return ANY if bare == ANY_V6 else (bare,)


def is_loopback(host: str) -> bool:
    """Returns whether a host name or address is one that only this machine can reach."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_loopback(host: str) -> None:
    """Raises BadInput if a server that asks for no keys must not listen on a host."""
    if not is_loopback(host):
        raise BadInput(
            "invalid_setting",
            f"host = {host!r}: without keys only a loopback address (127.0.0.1, ::1, localhost) is allowed; "
            "demand keys (--auth keys, --keys or --issuers) to listen elsewhere.",
            param="host",
        )
