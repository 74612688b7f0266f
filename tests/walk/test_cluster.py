"""A small cluster of real processes on a real Valkey and PostgreSQL: its owner and a gateway killed in mid-answer, a
tool added at one of its doors."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from testbed.chaos.cluster import SIMULATED, chaos_cluster
from testbed.chaos.load import load


@pytest.mark.cluster
async def test_answers_outlive_a_replica_and_a_gateway() -> None:
    async with chaos_cluster(*SIMULATED, proxied=False) as cluster, load(cluster, sessions=2) as running:
        owner = await cluster.owner(running.sessions[0])
        await owner.kill()
        await running.grows(10)
        assert "failover" in running.moves()
        await cluster.members["g1"].kill()
        await running.grows(10)
        assert running.device.connections >= 2
        assert await running.finish() == []


@pytest.mark.cluster
@pytest.mark.slow
async def test_a_tool_that_one_gateway_was_given_is_called_through_the_other(tmp_path: Path) -> None:
    tools = tmp_path / "tools.toml"
    tools.touch()
    async with chaos_cluster(*SIMULATED, "--tools", str(tools), names=("r1", "r2", "g1", "g2")) as cluster:
        one, other = (url.removesuffix("/v1/ws").replace("ws", "http", 1) for url in cluster.urls)
        async with (
            httpx.AsyncClient(base_url=one, timeout=60) as first,
            httpx.AsyncClient(base_url=other, timeout=60) as second,
        ):
            made = await first.put("/v1/tools/weather", json={"url": "https://weather.example/now"})
            assert made.status_code == 201, made.text
            assert (await second.get("/v1/tools/weather")).headers["etag"] == made.headers["etag"]
            tool = {"type": "function", "name": "weather", "server": True}
            model = (await second.get("/v1/models")).json()["data"][0]["id"]
            body = {"model": model, "input": "hello", "tools": [tool], "max_output_tokens": 8}

            async def statuses() -> set[int]:
                return {(await second.post("/v1/responses", json=body)).status_code for _ in range(8)}

            async with asyncio.timeout(60):
                while await statuses() != {200}:
                    pass
            assert (await second.delete("/v1/tools/weather")).status_code == 200
            async with asyncio.timeout(60):
                while await statuses() != {404}:
                    pass
