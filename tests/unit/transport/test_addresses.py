"""Addresses with IPv6 literals, and one port on both families."""

from __future__ import annotations

import asyncio

from transport.addresses import bare_host, joined, listened_hosts
from transport.http.http_connection import listen_on


def test_a_literal_has_its_brackets_where_a_port_follows() -> None:
    assert [bare_host(host) for host in ("::1", "[::1]", "localhost", "127.0.0.1")] == [
        *("::1", "::1", "localhost", "127.0.0.1")
    ]
    assert [joined(host, 7) for host in ("::", "[::1]", "localhost")] == ["[::]:7", "[::1]:7", "localhost:7"]


def test_the_ipv6_wildcard_stands_for_both_families() -> None:
    assert list(listened_hosts("::")) == list(listened_hosts("[::]")) == ["::", "0.0.0.0"]
    assert list(listened_hosts("[::1]")) == ["::1"] and list(listened_hosts("0.0.0.0")) == ["0.0.0.0"]


async def test_both_families_have_one_port_that_the_system_chose() -> None:
    listener = await listen_on(asyncio.get_running_loop(), asyncio.Protocol, ("::1", "127.0.0.1"), 0)
    async with listener:
        names = [made.getsockname()[:2] for made in listener.sockets]
        assert sorted(host for host, _ in names) == ["127.0.0.1", "::1"] and len({port for _, port in names}) == 1
