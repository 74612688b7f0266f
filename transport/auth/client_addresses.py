"""Names the address that a caller is counted by: its own, or what a trusted proxy says, IPv6 by /64.

`X-Forwarded-For` is what anybody may write. It is believed where the peer is a proxy of the list, and then from its
end: each proxy appends whom it heard from, so the last hop that is no trusted proxy is the caller, and what stands
before it is the caller's own word.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from functools import lru_cache

from sessions.model.errors import BadInput

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class TrustedProxies:
    """The proxies whose `X-Forwarded-For` is believed, as networks (`10.0.0.0/8`) or single addresses."""

    def __init__(self, networks: Iterable[str] = ()) -> None:
        """`networks` are networks (`10.0.0.0/8`) or single addresses. Raises BadInput for text that is neither."""
        try:
            self._networks = tuple(ipaddress.ip_network(each.strip()) for each in networks)
        except ValueError as error:
            raise BadInput("invalid_setting", f"trusted_proxies: {error}", param="trusted_proxies") from error

    def __contains__(self, address: str | None) -> bool:
        parsed = _parsed(address or "") if self._networks else None
        return parsed is not None and any(parsed in network for network in self._networks)

    def client(self, peer: str | None, forwarded: Sequence[str]) -> str | None:
        """Returns the address of the caller behind a connection from `peer`; `forwarded`: its `X-Forwarded-For`
        headers in order."""
        if not forwarded or peer not in self:
            return peer
        nearest = peer
        for hop in reversed(",".join(forwarded).split(",")):
            parsed = _parsed(_without_port(hop.strip()))
            if parsed is None:
                return nearest  # a trusted proxy wrote no address: this hop is the farthest known one
            nearest = str(parsed)
            if nearest not in self:
                return nearest
        return nearest


@lru_cache(maxsize=4096)
def address_group(address: str | None) -> str:
    """Returns what an address is counted as: itself, or for IPv6 its /64 network, which one customer has."""
    parsed = _parsed(address or "")
    if parsed is None:
        return address or ""
    if isinstance(parsed, ipaddress.IPv6Address):
        return str(ipaddress.IPv6Network((parsed, 64), strict=False))
    return str(parsed)


def _parsed(text: str) -> Address | None:
    try:
        parsed = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return parsed if mapped is None else mapped


def _without_port(hop: str) -> str:
    """Returns the address in `192.0.2.1:4711` or `[2001:db8::1]:4711`."""
    if hop.startswith("["):
        return hop[1:].partition("]")[0]
    return hop.partition(":")[0] if hop.count(":") == 1 else hop
