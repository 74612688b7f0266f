"""Decides which addresses a request may go to if somebody outside had a say in them: public ones, and networks that the
operator named.

The caller resolves a name once, asks here about every address that it has, and connects to the very address that was
checked. An address that stands for another (IPv4 in IPv6: mapped, 6to4, NAT64) is permitted only if that one is. Of
IPv6 only addresses that are handed out to the internet are public (2000::/3).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, NamedTuple
from urllib.parse import urlsplit

Network = IPv4Network | IPv6Network
Address = IPv4Address | IPv6Address

AGENT: Final = "sessile"  # what a request there says of its sender, and no more: neither library nor version
_PUBLIC: Final = IPv6Network("2000::/3")
_NAT64: Final = IPv6Network("64:ff9b::/96")
# What ipaddress takes for public, or its older versions do, and no service of the internet has: IETF's own (Teredo in
# it), 6to4 relays, documentation, and the address at which machines in Azure are told of themselves.
_INSIDE: Final[tuple[Network, ...]] = tuple(
    map(ip_network, ("192.0.0.0/24", "192.88.99.0/24", "168.63.129.16/32", "2001::/23", "3fff::/20"))
)
_LABEL: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?", re.ASCII)
_GRAPHIC: Final = re.compile(r"[!-~]+", re.ASCII)


class Destination(NamedTuple):
    """The parts of a URL that are needed to connect and to make the request's head."""

    scheme: str
    host: str  # a name or an address, without brackets
    port: int
    authority: str  # as the URL has it, for the `Host` header

    def at(self, address: str) -> str:
        """Returns the host's `address` with the port, as one text."""
        return f"[{address}]:{self.port}" if ":" in address else f"{address}:{self.port}"


def destination(url: str) -> Destination:
    """Parses a URL that a request is to be sent to. Raises ValueError, which says what is wrong, for every URL that a
    request could not be sent to, so that none fails only then."""
    if not _GRAPHIC.fullmatch(url):
        raise ValueError("it has signs that no URL has: names are written as xn--..., others as %XX")
    parts = urlsplit(url)  # ValueError: brackets without an address
    host, port = parts.hostname or "", parts.port  # ValueError: no port
    if parts.scheme not in ("https", "http"):
        raise ValueError("it begins with neither https:// nor http://")
    if parts.username is not None or "@" in parts.netloc:
        raise ValueError("it has a user's name or a password")
    if port == 0:
        raise ValueError("there is no port 0")
    if "[" in parts.netloc:
        if IPv6Address(host).scope_id is not None:
            raise ValueError("its address has a zone")
    elif len(host) > 253 or not all(map(_LABEL.fullmatch, host.removesuffix(".").split("."))):
        raise ValueError("it has no host")
    return Destination(parts.scheme, host, port or (443 if parts.scheme == "https" else 80), parts.netloc)


class AddressRules:
    """Decides where connections may go: to public addresses, and to the networks that the operator names."""

    def __init__(self, networks: Sequence[str] = ()) -> None:
        """`networks` are private networks (CIDR) that the operator permits besides public addresses. Raises ValueError
        for a text that is not a network."""
        self._networks: tuple[Network, ...] = tuple(map(_network, networks))

    def permits_all(self, addresses: Sequence[str]) -> bool:
        """Returns whether a connection may be made to a name with these addresses: all must be permitted, and there
        must be at least one."""
        return bool(addresses) and all(self.permits(ip_address(each.partition("%")[0])) for each in addresses)

    def permits(self, address: Address) -> bool:
        """Returns whether this address, and each that it stands for, is public or in one of the operator's networks."""
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        if self.names(address):
            return True
        if not _is_public(address):
            return False
        return all(_is_public(each) for each in _stands_for(address))

    def names(self, address: Address) -> bool:
        """Returns whether one of the operator's networks contains the address."""
        return any(address in network for network in self._networks if network.version == address.version)

    def permits_url(self, url: str) -> bool:
        """Returns whether a URL may be used, before its host is resolved: it must be HTTPS, or plain HTTP to an address
        in one of the operator's networks; it must name no user, and no address that is not permitted."""
        try:
            to = destination(url)
        except ValueError:
            return False
        try:
            literal: Address | None = ip_address(to.host)
        except ValueError:
            literal = None
        if literal is not None and not self.permits(literal):
            return False
        return to.scheme == "https" or (literal is not None and self.names(literal))


def _network(name: str) -> Network:
    try:
        return ip_network(name)
    except ValueError as error:
        try:
            meant = f": is {ip_network(name, strict=False)} meant?"
        except ValueError:
            meant = ", like 10.1.0.0/16"
        raise ValueError(f"{name!r} is no network{meant}") from error


def _is_public(address: Address) -> bool:
    if not address.is_global or address.is_multicast:
        return False
    if isinstance(address, IPv6Address) and address not in _PUBLIC and address not in _NAT64:
        return False
    return not any(address in network for network in _INSIDE if network.version == address.version)


def _stands_for(address: Address) -> Iterator[IPv4Address]:
    if not isinstance(address, IPv6Address):
        return
    if address.sixtofour is not None:
        yield address.sixtofour
    if address in _NAT64:
        yield IPv4Address(int(address) & 0xFFFFFFFF)
