"""Where a server may listen, and how it leaves."""

from __future__ import annotations

import httpx
import pytest

from sessions.model.errors import BadInput, Unavailable
from tests.support.doors.transport import gateway_over, memory_sessions
from transport.http_api.server import Server


async def test_without_keys_it_listens_on_loopback_only() -> None:
    with pytest.raises(BadInput) as caught:
        await Server(gateway_over(await memory_sessions()), host="0.0.0.0", port=0).start()
    assert caught.value.param == "host"


async def test_it_is_not_ready_while_it_drains_and_stops_twice() -> None:
    server = Server(gateway_over(await memory_sessions()), host="127.0.0.1", port=0, web=None)
    await server.start()
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        assert (await client.get("/readyz")).status_code == 200
        with pytest.raises(Unavailable):
            await Server(server.gateway, host="127.0.0.1", port=server.port).start()
        await server.drain("restart", after_ms=1)
        assert (await client.get("/readyz")).json()["reason"] == "draining"
    await server.stop()
    await server.stop()
    assert server.connections == 0


@pytest.mark.parametrize("host", ["::1", "[::1]"])
async def test_it_listens_on_ipv6_however_its_literal_is_spelled(host: str) -> None:
    server = Server(gateway_over(await memory_sessions()), host=host, port=0, web=None)
    await server.start()
    assert server.url.startswith("http://[::1]:")
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        assert (await client.get("/healthz")).status_code == 200
    await server.stop()
