"""A server listens where it may, and leaves in order."""

from __future__ import annotations

import httpx
import pytest

from tests.support.doors.transport import gateway_over, memory_sessions
from transport.http_api.server import Server


@pytest.mark.parametrize("host", ["::1", "[::1]"])
async def test_it_listens_on_ipv6_however_its_literal_is_spelled(host: str) -> None:
    server = Server(gateway_over(await memory_sessions()), host=host, port=0, web=None)
    await server.start()
    assert server.url.startswith("http://[::1]:")
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        assert (await client.get("/healthz")).status_code == 200
    await server.stop()
