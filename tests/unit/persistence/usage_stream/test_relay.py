"""The relay of usage rows: in order, at least once, one relay at a time, and patient while the stream is away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from persistence.memory.store import MemoryStore
from persistence.usage_stream.relay import UsageRelay
from sessions.billing.metering import UsageEntry, UsageStore
from sessions.metrics import Metrics
from sessions.model.errors import Unavailable
from sessions.model.types import UnixMs
from tests.support.stores.journals import NOW, billed

NAMES = [f"r{number}" for number in range(7)]


@pytest.fixture
async def store() -> AsyncIterator[MemoryStore]:
    async with billed(NAMES) as opened:
        yield opened


class Taken:
    """A sink that takes what it is told to take, and says no in between."""

    def __init__(self, *, refuse: Sequence[int] = ()) -> None:
        self.rows: list[UsageEntry] = []
        self.calls = 0
        self.locked = True
        self.closed = False
        self.refuse = set(refuse)
        self.moved = asyncio.Event()

    async def acquire(self) -> bool:
        return self.locked

    async def send(self, rows: Sequence[UsageEntry]) -> None:
        self.calls += 1
        self.moved.set()
        if self.calls in self.refuse:
            self.rows += rows[:1]  # some of them arrived before it failed
            raise Unavailable("usage_stream_away", "It is away.")
        self.rows += rows

    async def close(self) -> None:
        self.closed = True


def relay(usage: UsageStore, sink: Taken, *, batch: int = 3, poll_s: float = 0.001) -> UsageRelay:
    return UsageRelay(usage, sink, now_ms=lambda: UnixMs(NOW), metrics=Metrics(), batch=batch, poll_s=poll_s)


async def test_a_relay_without_the_lock_passes_nothing_on(store: MemoryStore) -> None:
    sink = Taken()
    sink.locked = False
    assert await relay(store.usage, sink).relay_batch() is False
    assert sink.calls == 0


async def test_a_running_relay_comes_back_after_a_failure_and_closes_its_sink(store: MemoryStore) -> None:
    sink = Taken(refuse=[1, 2])
    running = asyncio.create_task(relay(store.usage, sink, batch=100).run())
    async with asyncio.timeout(60):
        while sink.calls < 3:
            await sink.moved.wait()
            sink.moved.clear()
    running.cancel()
    await asyncio.wait([running])
    assert sink.closed
    assert {entry.row.response_id for entry in sink.rows} == set(NAMES)
