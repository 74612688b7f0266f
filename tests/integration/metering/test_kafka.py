"""Usage rows on Kafka: a broker as a process (librdkafka's mock cluster, `tests.support.stores.kafka_broker`: the
protocol is real, Apache Kafka it is not), a consumer, and brokers that are away, silent, dead or without the topic.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator

import pytest
import redis.asyncio as redis

from persistence.memory.store import MemoryStore
from persistence.usage_stream.kafka import KafkaSink
from persistence.usage_stream.open_sink import open_usage_sink
from persistence.usage_stream.relay import UsageRelay
from sessions.billing.metering import entry_public
from sessions.metrics import Metrics
from sessions.model.errors import Unavailable
from sessions.model.types import UnixMs
from testbed.valkey_server import Server as Valkey
from testbed.valkey_server import free_port
from tests.support.stores.journals import NOW, billed, key
from tests.support.stores.kafka_broker import KafkaBroker, KafkaConsumer

NAMES = [f"r{number}" for number in range(9)]
PATIENCE_S = 60.0


@pytest.fixture
async def store() -> AsyncIterator[MemoryStore]:
    async with billed(NAMES) as opened:
        yield opened


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaBroker]:
    running = KafkaBroker("bills")
    running.start()
    yield running
    running.kill()


@pytest.fixture
async def consumer(broker: KafkaBroker) -> AsyncIterator[KafkaConsumer]:
    reading = KafkaConsumer(broker.address, "bills")
    task = asyncio.create_task(reading.run())
    yield reading
    reading.stop()
    await task
    await reading.close()


def kafka(address: str, topic: str = "bills") -> KafkaSink:
    sink = open_usage_sink(f"kafka://{address}/{topic}")
    assert isinstance(sink, KafkaSink)
    return sink


def relay(store: MemoryStore, sink: KafkaSink, *, batch: int = 4) -> UsageRelay:
    return UsageRelay(store.usage, sink, now_ms=lambda: UnixMs(NOW), metrics=Metrics(), batch=batch, poll_s=0.01)


async def waiting(store: MemoryStore) -> list[str]:
    return [entry.row.response_id for entry in await store.usage.unrelayed(limit=100)]


@pytest.mark.slow
async def test_a_silent_broker_has_rows_sent_again_and_the_topic_is_the_table(
    store: MemoryStore, broker: KafkaBroker, consumer: KafkaConsumer
) -> None:
    sink = kafka(broker.address)
    passing = relay(store, sink)
    try:
        assert await passing.relay_batch() is True
        assert await waiting(store) == NAMES[4:]
        broker.pause()
        turns = 0
        stuck = asyncio.create_task(passing.relay_batch())
        while not (await asyncio.wait([stuck], timeout=0.01))[0]:
            turns += 1
        with pytest.raises(Unavailable, match=r"'bills' at 127\.0\.0\.1:\d+ cannot be written"):
            await stuck
        assert turns > 100, "the event loop went on"
        assert await waiting(store) == NAMES[4:], "what was not acknowledged is not marked"
        broker.resume()
        while await passing.relay_batch():
            pass
        assert await waiting(store) == []
        async with asyncio.timeout(PATIENCE_S):
            await consumer.has(len(NAMES))
    finally:
        broker.resume()
        await sink.close()
    table = {entry.row.response_id: entry_public(entry) for entry in await store.usage.of_session(key("s"))}
    assert {name[2]: row for name, row in consumer.rows.items()} == json.loads(json.dumps(table))
    assert consumer.faults == []


async def test_a_topic_that_is_not_there_is_said_and_not_made(store: MemoryStore, broker: KafkaBroker) -> None:
    sink = kafka(broker.address, "bils")
    try:
        for _ in range(2):
            with pytest.raises(Unavailable, match=r"'bils' at .* the topic is not there; make it"):
                await relay(store, sink).relay_batch()
    finally:
        await sink.close()
    assert await waiting(store) == NAMES


@pytest.mark.slow
async def test_a_wrong_address_is_said_with_what_is_wrong_with_it(store: MemoryStore) -> None:
    async def refused(address: str, problem: str) -> None:
        sink = kafka(address)
        try:
            with pytest.raises(Unavailable, match=problem):
                await relay(store, sink).relay_batch()
        finally:
            await sink.close()

    closed = f"127.0.0.1:{free_port()}"
    await asyncio.gather(refused(closed, "Connection refused"), refused("nowhere.invalid:1", "Failed to resolve"))
    assert await waiting(store) == NAMES


async def test_a_relay_that_is_stopped_while_nobody_answers_ends_soon(store: MemoryStore, broker: KafkaBroker) -> None:
    sink = kafka(broker.address)
    await relay(store, sink).relay_batch()
    broker.pause()
    try:
        passing = asyncio.create_task(relay(store, sink).run())
        async with asyncio.timeout(60):
            while not (sink._producer and len(sink._producer)):  # rows are on their way
                assert not (await asyncio.wait([passing], timeout=0.001))[0]
            passing.cancel()
            await asyncio.wait([passing])
        assert passing.cancelled()
    finally:
        broker.resume()
    assert await waiting(store) == NAMES[4:]


@pytest.mark.cluster
async def test_relays_of_a_cluster_have_their_lock_in_its_directory(store: MemoryStore, broker: KafkaBroker) -> None:
    valkey = Valkey(port=free_port())
    valkey.start()
    url = f"kafka://{broker.address}/bills"
    first, second = (open_usage_sink(url, lock_client=redis.Redis.from_url(valkey.url)) for _ in range(2))
    try:
        assert await first.acquire()
        assert await first.acquire()
        assert not await second.acquire()
        valkey.stop()
        with pytest.raises(Unavailable, match="lock of the usage stream"):
            await second.acquire()
    finally:
        valkey.stop()
        await first.close()
        await second.close()
