"""A port of its own for metrics."""

from __future__ import annotations

import httpx
import pytest

from sessions.metrics import Metrics
from sessions.model.errors import Unavailable
from transport.ops.metrics_server import MetricsServer
from transport.ops.prometheus import MetricsExposition


async def test_it_serves_metrics_and_health_without_keys() -> None:
    exposition = MetricsExposition(Metrics(), version="1", role="test")
    reasons: list[str] = []
    server = MetricsServer(exposition, host="127.0.0.1", port=0, readiness=lambda: reasons[-1] if reasons else None)
    await server.start()
    try:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            assert "sessile_build_info" in (await client.get("/metrics")).text
            assert (await client.get("/healthz")).text == "ok\n"
            assert (await client.get("/readyz")).text == "ok\n"
            reasons.append("draining")
            unready = await client.get("/readyz")
            assert (unready.status_code, unready.text) == (503, "draining\n")
            assert (await client.get("/healthz")).status_code == 200
            assert (await client.get("/v1/sessions")).status_code == 404
        port = int(server.url.rpartition(":")[2])
        with pytest.raises(Unavailable):
            await MetricsServer(exposition, host="127.0.0.1", port=port).start()
    finally:
        await server.stop()
        await server.stop()


async def test_on_loopback_it_answers_under_loopback_s_names_only() -> None:
    """A web page that points a name of its own at this machine reads nothing."""
    server = MetricsServer(MetricsExposition(Metrics(), version="1", role="test"), host="127.0.0.1", port=0)
    await server.start()
    try:
        async with httpx.AsyncClient(base_url=server.url) as client:
            for host, status in (("localhost:9", 200), ("127.0.0.1", 200), ("[::1]:9", 200), ("evil.example", 403)):
                for path in ("/metrics", "/healthz", "/readyz"):
                    assert (await client.get(path, headers={"host": host})).status_code == status
    finally:
        await server.stop()
