"""The Redis tier on a real server: bounded by the server itself, shared by replicas, encrypted, gone when erased."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from inference.kv.envelope import KvIdentity, SnapshotRefused
from inference.kv.redis import RedisTier
from inference.tokens import as_tokens
from persistence.keys import MemoryKeyStore
from testbed.valkey_server import Server
from tests.support.engines.kv import IDENTITY, key, make_tiers, payload_of, snapshot, spill, write_payload

pytestmark = pytest.mark.cluster
SIZE = 50_000


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    made = Server()
    made.start()
    yield made
    made.stop()


@pytest.fixture
async def redis(server: Server) -> AsyncIterator[Redis]:
    client: Redis = Redis.from_url(server.unix_url)
    await client.flushall()
    yield client
    await client.aclose()


class Replica:
    """Opens tiers on the one server and closes them at the end."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.keys = MemoryKeyStore()
        self.opened: list[RedisTier] = []

    async def tier(self, *, bytes_max: int = 1 << 24, identity: KvIdentity = IDENTITY) -> RedisTier:
        tier = RedisTier(self.url, bytes_max, identity, self.keys, snapshot_bytes_max=1 << 20)
        await tier.open()
        self.opened.append(tier)
        return tier


@pytest.fixture
async def replica(server: Server, redis: Redis) -> AsyncIterator[Replica]:
    made = Replica(server.unix_url)
    yield made
    for tier in made.opened:
        await tier.close()


async def put(tier: RedisTier, folder: Path, name: str, num_tokens: int = 10, salt: str = "") -> bool:
    manifest, payload = snapshot(key(name), num_tokens, SIZE, salt=salt)
    return await tier.put(manifest, write_payload(folder, manifest, payload))


async def raw(redis: Redis, name: Any) -> bytes:
    data = await redis.get(name)
    assert isinstance(data, bytes)
    return data


async def counted(redis: Redis) -> int:
    """The bytes that the tier itself counts."""
    return int(await raw(redis, "{sessile-kv}:bytes"))


async def test_erased_is_gone_for_every_replica_also_while_it_is_written(
    replica: Replica, redis: Redis, tmp_path: Path
) -> None:
    here, there = await replica.tier(), await replica.tier()
    assert await put(here, tmp_path, "a")
    await there.discover(key("a"))
    (entry,) = there.of(key("a"))
    await here.erase(key("a"))
    with pytest.raises(SnapshotRefused):
        await there.fetch(entry, tmp_path / "back")
    for turns in range(12):
        writing = asyncio.create_task(put(here, tmp_path, "a", salt=str(turns)))
        for _ in range(turns):
            await asyncio.sleep(0)
        await here.erase(key("a"))
        await writing
        if turns == 0:
            await here.erase(key("a"))  # this one had not begun to be written
        assert await redis.keys("{sessile-kv}:data:*") == [] and here.of(key("a")) == []
    assert await counted(redis) == 0


async def test_damage_and_strangers_are_refused_and_removed(replica: Replica, redis: Redis, tmp_path: Path) -> None:
    tier, chance = await replica.tier(), random.Random(9)
    for round_ in range(30):
        assert await put(tier, tmp_path, "a", salt=str(round_))
        (entry,) = tier.of(key("a"))
        (name,) = await redis.keys("{sessile-kv}:data:*")
        data = bytearray(await raw(redis, name))
        match round_ % 3:
            case 0:
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            case 1:
                del data[chance.randrange(len(data)) :]
            case 2:
                data += b"more"
        await redis.set(name, bytes(data))
        with pytest.raises(SnapshotRefused):
            await tier.fetch(entry, tmp_path / "back")
        assert tier.of(key("a")) == [] and await redis.keys("{sessile-kv}:data:*") == []
    assert await put(tier, tmp_path, "a")
    other = await replica.tier(identity=KvIdentity("engine/1", "model-2", "f16", "slots"))
    await other.discover(key("a"))
    assert other.of(key("a")) == []
    await replica.keys.destroy(key("a"))
    fresh = await replica.tier()
    await fresh.discover(key("a"))
    assert fresh.of(key("a")) == [] and fresh.counters["refused_unknown_key"] == 1


async def test_a_cancelled_call_leaves_no_answer_behind(replica: Replica, tmp_path: Path) -> None:
    tier = await replica.tier()
    for name in ("a", "b"):
        assert await put(tier, tmp_path, name)
    for turns in range(40):
        task = asyncio.create_task(tier.discover(key("a")))
        for _ in range(turns % 7):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        await tier.discover(key("b"))
        (entry,) = tier.of(key("b"))
        await tier.fetch(entry, tmp_path / "back")
        assert (tmp_path / "back").read_bytes() == payload_of(f"{key('b')}", SIZE)


async def test_a_server_that_is_away_costs_nothing_but_a_recompute(tmp_path: Path) -> None:
    server = Server()
    server.start()
    tier = RedisTier(server.unix_url, 1 << 24, IDENTITY)
    await tier.open()
    assert await put(tier, tmp_path, "a")
    (entry,) = tier.of(key("a"))
    server.stop()
    with pytest.raises(SnapshotRefused, match=r"^tier_away$"):
        await tier.fetch(entry, tmp_path / "back")
    assert tier.of(key("a")) == [entry]
    assert not await put(tier, tmp_path, "b")
    await tier.discover(key("c"))
    await tier.erase(key("a"))
    assert tier.counters["redis_away"] >= 1 and tier.counters["redis_erase_failed"] == 1
    await tier.close()


async def test_a_session_comes_up_where_its_last_owner_left_nothing_else(replica: Replica, tmp_path: Path) -> None:
    """Through the tiers: saved on one replica, copied behind its back, restored on another that only has Redis."""
    staging = [tmp_path / "one", tmp_path / "two"]
    for folder in staging:
        folder.mkdir()
    one, two = (
        make_tiers(folder, 1 << 24, None, shared=RedisTier(replica.url, 1 << 24, IDENTITY, replica.keys))
        for folder in staging
    )
    for tiers in (one, two):
        await tiers.open()
    assert await spill(one, key("a"), range(50), payload=payload_of("x", SIZE))
    await one.host.settle()
    await two.discover(key("a"))
    assert two.catalog.place(key("a")).tier == "redis" and two.catalog.place(key("a")).tokens == 50
    await two.prefetch(key("a"))
    await two.host.settle()
    assert two.catalog.place(key("a")).tier == "host" and two.counters["prefetches"] == 1
    found, shared = two.catalog.find(key("a"), as_tokens(range(60)))
    assert found is not None and shared == 50
    async with two.payload(found) as host:
        assert host.path.read_bytes() == payload_of("x", SIZE)
    await two.erase(key("a"))
    assert two.catalog.place(key("a")).tier == "none"
    await two.discover(key("a"))
    assert two.catalog.place(key("a")).tier == "none"
    await one.close(0.0)
    await two.close(0.0)


async def test_looking_forgets_nothing_when_the_server_is_away_and_does_not_ask_it_for_a_while(tmp_path: Path) -> None:
    server = Server()
    server.start()
    tier = RedisTier(server.unix_url, 1 << 24, IDENTITY)
    await tier.open()
    assert await put(tier, tmp_path, "a")
    server.stop()
    await tier.discover(key("a"))
    assert len(tier.of(key("a"))) == 1 and tier.counters["redis_away"] == 1
    await tier.discover(key("a"))
    assert tier.counters["redis_away"] == 1
    await tier.close()


async def test_a_server_that_says_nothing_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = await asyncio.start_unix_server(lambda reader, writer: None, tmp_path / "silent.sock")
    monkeypatch.setattr("inference.kv.redis._DISCOVER_WAIT_S", 0.001)
    tier = RedisTier(f"unix://{tmp_path / 'silent.sock'}", 1 << 24, IDENTITY)
    await tier.discover(key("a"))
    assert tier.counters["redis_late"] == 1 and tier.counters["redis_away"] == 0, "it was not waited for to the end"
    silent.close()
    await tier.close()
