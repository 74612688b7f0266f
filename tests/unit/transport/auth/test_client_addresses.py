"""Whose word on addresses is believed, and what addresses are counted by."""

from __future__ import annotations

import pytest

from sessions.model.errors import BadInput
from transport.auth.client_addresses import TrustedProxies, address_group

PROXIES = TrustedProxies(("10.0.0.0/8", " 2001:db8:1::/48"))


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("192.0.2.1", ["203.0.113.9"], "192.0.2.1"),  # no proxy of ours
        (None, ["203.0.113.9"], None),
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["203.0.113.9"], "203.0.113.9"),
        ("10.0.0.1", ["1.1.1.1, 203.0.113.9"], "203.0.113.9"),
        ("10.0.0.1", ["1.1.1.1", "203.0.113.9,10.2.3.4"], "203.0.113.9"),
        ("10.0.0.1", ["10.9.9.9, 10.2.3.4"], "10.9.9.9"),
        ("10.0.0.1", ["203.0.113.9:4711"], "203.0.113.9"),
        ("10.0.0.1", ["[2001:db8:2::5]:4711"], "2001:db8:2::5"),
        ("::ffff:10.0.0.1", ["203.0.113.9"], "203.0.113.9"),
        ("2001:db8:1::7", ["2001:db8:2::5"], "2001:db8:2::5"),
        ("10.0.0.1", ["203.0.113.9, unknown"], "10.0.0.1"),
        ("10.0.0.1", ["203.0.113.9, nonsense, 10.2.3.4"], "10.2.3.4"),
        ("10.0.0.1", [""], "10.0.0.1"),
    ],
)
def test_the_last_hop_that_is_no_proxy_of_ours(peer: str | None, forwarded: list[str], client: str | None) -> None:
    assert PROXIES.client(peer, forwarded) == client
    assert TrustedProxies().client(peer, forwarded) == peer


def test_a_network_that_is_none() -> None:
    with pytest.raises(BadInput, match="trusted_proxies"):
        TrustedProxies(("10.0.0.1/8",))


@pytest.mark.parametrize(
    ("address", "group"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8:0:0:9::1", "2001:db8::/64"),
        ("testclient", "testclient"),
        (None, ""),
    ],
)
def test_what_an_address_is_counted_by(address: str | None, group: str) -> None:
    assert address_group(address) == group
