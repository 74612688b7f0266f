"""Requests to addresses that strangers named: none inside the network, whatever a name says, and no redirect."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from sessions.model.errors import BadInput, Forbidden, Unavailable
from tests.support.doors.push_service import PushService
from transport.push.outbound import OutboundClient, parse_networks

INSIDE = (
    "127.0.0.1",
    "10.0.0.1",
    "192.168.1.1",
    "172.16.0.1",
    "169.254.169.254",
    "100.64.0.1",
    "0.0.0.0",
    "224.0.0.1",
    "::1",
    "fe80::1",
    "fd00::1",
    "::ffff:10.0.0.1",
    "ff02::1",
)


def naming(*addresses: str) -> OutboundClient:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return addresses

    return OutboundClient(resolve=resolve)


@pytest.mark.parametrize("address", INSIDE)
async def test_no_address_of_the_network_is_sent_to_by_number_or_by_name(address: str) -> None:
    host = f"[{address}]" if ":" in address else address
    async with naming(address) as client:
        with pytest.raises(Forbidden):
            client.check_address(f"https://{host}/x")
        with pytest.raises(Forbidden):
            await client.post("https://push.example/x", b"", {})
    async with naming("93.184.216.34", address) as client:
        with pytest.raises(Forbidden):
            await client.post("https://push.example/x", b"", {})


async def test_of_an_answer_only_the_first_bytes_are_read_and_nothing_is_unpacked() -> None:
    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 400 x\r\ncontent-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n")
        try:
            while True:
                writer.write(b"400\r\n" + b"x" * 1024 + b"\r\n")
                await writer.drain()
        except ConnectionError:
            writer.close()

    server = await asyncio.start_server(flood, "127.0.0.1", 0)
    async with server, OutboundClient(parse_networks(["127.0.0.0/8"])) as client:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/x"
        assert (await client.post(url, b"", {}, answer_bytes=100)).body == b"x" * 100
        assert (await client.post(url, b"", {})).body == b""


async def test_a_network_that_is_named_is_sent_to_and_a_redirect_is_not_followed() -> None:
    async with PushService() as service, OutboundClient(parse_networks(["127.0.0.0/8"])) as client:
        service.answer = lambda device: (307, {"location": service.device("other")["endpoint"], "retry-after": "3"})
        answer = await client.post(service.device("phone")["endpoint"], b"", {"content-length": "0"})
        assert (answer.status, answer.retry_after, service.requests) == (307, "3", 1)
    with pytest.raises(BadInput, match="push_networks"):
        parse_networks(["loopback"])
    assert parse_networks(["10.0.0.0/8"]).permits_url("http://10.1.2.3/")


async def test_a_service_that_is_away_is_unavailable() -> None:
    async with PushService() as service:
        url = service.device("phone")["endpoint"]
    async with OutboundClient(parse_networks(["127.0.0.0/8"])) as client:
        with pytest.raises(Unavailable):
            await client.post(url, b"", {})
        with pytest.raises(Unavailable):
            await client.post("https://no-such-name.invalid/x", b"", {})
