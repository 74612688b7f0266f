"""Which addresses a request may go to."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from sessions.public_addresses import AddressRules, destination

INSIDE = (
    "127.0.0.1",
    "10.0.0.1",
    "192.168.1.1",
    "172.16.0.1",
    "169.254.169.254",
    "100.64.0.1",
    "0.0.0.0",
    "224.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "fe80::1",
    "fd00::1",
    "::ffff:10.0.0.1",
    "ff02::1",
    "2002:7f00:1::",
    "2002:a9fe:a9fe::",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::a00:1",
    "::127.0.0.1",
    "::ffff:0:127.0.0.1",
    "fec0::1",
    "2001:0:7f00:1::",
    "4000::1",
    "5f00::1",
    "3fff::1",
    "192.0.0.192",
    "192.88.99.1",
    "168.63.129.16",
)


@pytest.mark.parametrize("address", INSIDE)
def test_nothing_inside_however_it_is_written(address: str) -> None:
    rules = AddressRules()
    assert not rules.permits(ip_address(address)) and not rules.permits_all(["93.184.216.34", address])
    host = f"[{address}]" if ":" in address else address
    assert not rules.permits_url(f"https://{host}/x")


def test_what_is_public_or_named_is_permitted() -> None:
    rules = AddressRules(["10.1.0.0/16", "fd00::/8"])
    assert rules.permits_all(["93.184.216.34", "2606:2800:220:1::1", "10.1.2.3", "fd00::1", "::ffff:10.1.2.3"])
    assert (
        rules.permits_all(["64:ff9b::5db8:d822"]) and not rules.permits_all([]) and not rules.permits_all(["10.2.0.1"])
    )
    for good in ("https://a.example/x", "https://93.184.216.34:8443/", "http://10.1.2.3/x", "https://10.1.2.3/"):
        assert rules.permits_url(good), good
    for bad in (
        "http://a.example/",
        "http://93.184.216.34/",
        "ftp://a.example/",
        "https://u@a.example/",
        "https:///x",
        "x",
    ):
        assert not rules.permits_url(bad), bad
    with pytest.raises(ValueError, match="99"):
        AddressRules(["10.1.0.0/99"])
    with pytest.raises(ValueError, match=r"is 10\.0\.0\.0/8 meant"):
        AddressRules(["10.1.0.0/8"])


UNSENDABLE = (
    "https://a.example:99999/",
    "https://a.example:0/",
    "https://a.example:x/",
    "https://a.example:\u0663/",
    "https://a.example/\x01",
    "https://a.example/ x",
    "https://a.example/\n",
    "https://a.example/\u00e9",
    "https://b\u00fccher.example/",
    "https://a\0b.example/",
    "https://a..b/",
    "https://.example/",
    "https://-a.example/",
    f"https://{'a' * 64}.example/",
    f"https://{'a.' * 127}example/",
    "https://%31.example/",
    "https://a.example\\b/",
    "https://[v1.x]/",
    "https://[::1",
    "https://[fe80::1%25eth0]/",
    "https://@a.example/",
    "https://u:p@a.example/",
    "https://:443/",
    "//a.example/",
    "a.example",
    "",
)


@pytest.mark.parametrize("url", UNSENDABLE)
def test_what_no_request_could_be_sent_to_is_refused_before_one_is(url: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        destination(url)
    assert not AddressRules().permits_url(url)


def test_where_a_url_leads() -> None:
    to = destination("https://Push.example:8443/x?y")
    assert to == ("https", "push.example", 8443, "Push.example:8443")
    assert (to.at("2606::1"), to.at("1.2.3.4")) == ("[2606::1]:8443", "1.2.3.4:8443")
    assert destination("http://[fd00::1]/").port == 80 and destination("https://a_b.example./").host == "a_b.example."
