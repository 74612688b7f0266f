"""The stream of Valkey: every row once where all goes well, one relay at a time, and an error while it is away."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import msgspec
import pytest

from persistence.memory.store import MemoryStore
from persistence.usage_stream.open_sink import open_usage_sink
from persistence.usage_stream.relay import UsageRelay
from persistence.usage_stream.valkey import ValkeySink
from sessions.metrics import Metrics
from sessions.model.errors import BadInput, Unavailable
from sessions.model.types import UnixMs
from tests.support.cluster.directories import Server, free_port
from tests.support.stores.journals import NOW, billed

NAMES = [f"r{number}" for number in range(7)]


@pytest.fixture
async def store() -> AsyncIterator[MemoryStore]:
    async with billed(NAMES) as opened:
        yield opened


@pytest.fixture(scope="module")
def valkey() -> Iterator[Server]:
    server = Server(port=free_port())
    server.start()
    yield server
    server.stop()


@pytest.mark.cluster
async def test_a_stream_of_valkey_has_every_row_and_one_relay_at_a_time(store: MemoryStore, valkey: Server) -> None:
    first, second = (open_usage_sink(f"{valkey.url}/0?stream=bills") for _ in range(2))
    assert isinstance(first, ValkeySink) and isinstance(second, ValkeySink)
    assert await first.acquire()
    assert await first.acquire()
    assert not await second.acquire()
    passing = UsageRelay(store.usage, first, now_ms=lambda: UnixMs(NOW), metrics=Metrics(), batch=3)
    while await passing.relay_batch():
        pass
    with valkey.client() as client:
        entries = client.xrange("bills")
    rows = [msgspec.json.decode(fields[b"row"]) for _, fields in entries]
    assert [row["response_id"] for row in rows] == NAMES
    assert rows[0]["session"] == "s" and rows[0]["output_tokens"] == 7
    await first.close()
    await second.close()


@pytest.mark.cluster
async def test_a_stream_that_is_away_is_reported() -> None:
    sink = open_usage_sink(f"redis://127.0.0.1:{free_port()}/0")
    with pytest.raises(Unavailable, match="cannot be written"):
        await sink.acquire()
    await sink.close()


def test_a_url_that_is_none_is_refused() -> None:
    with pytest.raises(BadInput) as refused:
        ValkeySink("nonsense")
    assert refused.value.param == "usage_stream"
