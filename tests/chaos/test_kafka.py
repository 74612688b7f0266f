"""A server whose usage goes to Kafka, and whose broker is not there, dies, and is another one: turns go on, and every
row arrives. The broker is librdkafka's mock cluster (`tests.support.stores.kafka_broker`), not Apache Kafka.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from testbed.chaos.proxy import Proxy
from testbed.server_process import ServerProcess
from testbed.valkey_server import free_port
from tests.support.stores.kafka_broker import KafkaBroker, KafkaConsumer

PATIENCE_S = 60.0


async def ask(http: httpx.AsyncClient) -> None:
    body = {"model": "simulated", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
    async with asyncio.timeout(60):
        assert (await http.post("/v1/chat/completions", json=body)).status_code == 200


async def failures(http: httpx.AsyncClient) -> int:
    found = re.search(r"^sessile_usage_relay_failures_total (\d+)", (await http.get("/metrics")).text, re.MULTILINE)
    assert found is not None
    return int(found[1])


async def one_more_failure(http: httpx.AsyncClient, had: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await failures(http) == had:  # noqa: ASYNC110  (the server is another process)
            await asyncio.sleep(0.1)


async def rows_of(http: httpx.AsyncClient) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = (await http.get("/v1/usage/responses")).json()["data"]
    return rows


async def consumed(broker: KafkaBroker, count: int) -> KafkaConsumer:
    """What the broker has, once it has that many rows."""
    consumer = KafkaConsumer(broker.address, "bills")
    reading = asyncio.create_task(consumer.run())
    try:
        async with asyncio.timeout(PATIENCE_S):
            await consumer.has(count)
    finally:
        consumer.stop()
        await reading
        await consumer.close()
    assert consumer.faults == []
    return consumer


@pytest.mark.slow
@pytest.mark.chaos
async def test_a_server_goes_on_while_the_broker_is_dead_and_every_row_arrives(tmp_path: Path) -> None:
    """The proxy is the address that people configure; behind it a broker is killed, and another starts with nothing."""
    first, second = KafkaBroker("bills"), KafkaBroker("bills")
    front = ("127.0.0.1", free_port())
    flags = ["--engine", "sim", "--sim-tokens-per-s", "1000", "--usage-stream", f"kafka://127.0.0.1:{front[1]}/bills"]
    try:
        with ServerProcess(*flags, data=str(tmp_path)) as server:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=60) as http:
                await ask(http)  # before there is a broker
                first.start()
                async with Proxy(("127.0.0.1", first.port), listen=front):
                    await ask(http)
                    before = await consumed(first, 2)
                    first.kill()
                had = await failures(http)
                for _ in range(3):
                    await ask(http)
                await one_more_failure(http, had)
                second.start()
                async with Proxy(("127.0.0.1", second.port), listen=front):
                    after = await consumed(second, 3)
                    rows = await rows_of(http)
        assert len(rows) == 5
        assert sorted((before.rows | after.rows).values(), key=lambda row: int(row["seq"])) == rows
    finally:
        first.kill()
        second.kill()
