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

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class TrustedProxies:
    """The proxies whose word on addresses is taken, as networks (`10.0.0.0/8`) or single addresses."""

    def __init__(self, networks: Iterable[str] = ()) -> None:
        """Raises BadInput for what is no network."""
        try:
            self._networks = tuple(ipaddress.ip_network(each.strip()) for each in networks)
        except ValueError as error:
            raise BadInput("invalid_setting", f"trusted_proxies: {error}", param="trusted_proxies") from error

    def __contains__(self, address: str | None) -> bool:
        parsed = _parsed(address or "") if self._networks else None
        return parsed is not None and any(parsed in network for network in self._networks)

    def client(self, peer: str | None, forwarded: Sequence[str]) -> str | None:
        """The caller behind a connection from `peer`; `forwarded` are its `X-Forwarded-For` headers, in order."""
        if not forwarded or peer not in self:
            return peer
        nearest = peer
        for hop in reversed(",".join(forwarded).split(",")):
            parsed = _parsed(_without_port(hop.strip()))
            if parsed is None:
                return nearest  # a proxy of ours wrote no address: the hop that we know is as far as we see
            nearest = str(parsed)
            if nearest not in self:
                return nearest
        return nearest


@lru_cache(maxsize=4096)
def address_group(address: str | None) -> str:
    """What an address is counted by: itself, for IPv6 its /64, which is what one customer has."""
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
    """Of `192.0.2.1:4711` and `[2001:db8::1]:4711` the address."""
    if hop.startswith("["):
        return hop[1:].partition("]")[0]
    return hop.partition(":")[0] if hop.count(":") == 1 else hop
