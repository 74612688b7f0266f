"""Taking turns in Valkey: one holder, who may keep it, and a cancellation that is not swallowed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import redis.asyncio as redis

from persistence.usage_stream.relay_lock import LOCK_MS, ValkeyRelayLock, shield_call
from testbed.valkey_server import Server, running

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def valkey() -> Iterator[Server]:
    with running() as server:
        yield server


async def test_one_holds_the_turn_and_keeps_it_until_its_key_ends(valkey: Server) -> None:
    clients = [redis.Redis.from_url(valkey.unix_url) for _ in range(2)]
    mine, other = (ValkeyRelayLock(client, "turn") for client in clients)
    assert await mine.acquire() and not await other.acquire() and await mine.acquire()
    assert 0 < await clients[0].pttl("turn") <= LOCK_MS
    await clients[1].delete("turn")
    assert await other.acquire() and not await mine.acquire()
    await mine.close()
    await other.close()


async def test_a_cancellation_reaches_the_caller_of_a_call_that_swallows_it() -> None:
    release = asyncio.Event()

    async def swallowing() -> None:
        try:
            await release.wait()
        except asyncio.CancelledError:
            await release.wait()

    task = asyncio.ensure_future(shield_call(swallowing()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    release.set()
