"""The worlds that the directory's suite runs in: in memory, and on real Valkey servers.

`World.advance` lets time pass without waiting: the memory directory's loop is moved on, and on a server everything that
is stored is dated back.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Protocol, TypeVar

import redis

from actors.directory import Leases
from actors.directory.memory import MemoryDirectory
from actors.directory.rules import DirectoryState
from actors.directory.valkey import ValkeyDirectory
from testbed.valkey_server import Server, cluster_url

T = TypeVar("T")


class World(Protocol):
    """One stored directory, and handles to it as different processes would have them."""

    ttl_s: float

    async def handle(self) -> Leases: ...

    def advance(self, seconds: float) -> None: ...

    def empty(self) -> None: ...

    def entries(self) -> int:
        """How many sessions' entries are stored, dead ones among them."""
        ...

    async def close(self) -> None: ...


class MemoryWorld:
    ttl_s = 6.0

    def __init__(self) -> None:
        self.store = DirectoryState()
        self._handles: list[MemoryDirectory] = []
        self._advanced_s = 0.0
        loop = asyncio.get_running_loop()
        real = loop.time
        loop.time = lambda: real() + self._advanced_s  # type: ignore[method-assign]

    async def handle(self) -> Leases:
        directory = MemoryDirectory(self.store, lease_ttl_s=self.ttl_s)
        await directory.open()
        self._handles.append(directory)
        return directory

    def advance(self, seconds: float) -> None:
        self._advanced_s += seconds

    def empty(self) -> None:
        self.store.empty()

    def entries(self) -> int:
        self.store.check_integrity()
        return self.store.entry_count

    async def close(self) -> None:
        for handle in self._handles:
            await handle.close()
        self.store.check_integrity()


BACKDATE = """
for _, key in ipairs(redis.call('KEYS', '*')) do
  if key:find(':leases$') or key:find(':members$') then
    local all = redis.call('HGETALL', key)
    for i = 1, #all, 2 do
      local record = cjson.decode(all[i + 1])
      record[3] = record[3] - ARGV[1]
      redis.call('HSET', key, all[i], cjson.encode(record))
    end
  elseif key:find(':watch:') then
    for _, gateway in ipairs(redis.call('ZRANGE', key, 0, -1)) do
      redis.call('ZINCRBY', key, -ARGV[1], gateway)
    end
  end
end
"""


class ValkeyWorld:
    ttl_s = 6.0

    def __init__(self, servers: list[Server], url: str) -> None:
        self._servers = servers
        self._url = url
        self._handles: list[ValkeyDirectory] = []
        self.empty()

    async def handle(self) -> Leases:
        directory = ValkeyDirectory(self._url, lease_ttl_s=self.ttl_s)
        await directory.open()
        self._handles.append(directory)
        return directory

    def advance(self, seconds: float) -> None:
        self._each(lambda client: client.eval(BACKDATE, 0, round(seconds * 1000)))

    def empty(self) -> None:
        self._each(lambda client: client.flushall())

    def entries(self) -> int:
        return sum(self._each(lambda client: sum(client.hlen(key) for key in client.keys("*:owners"))))

    def _each(self, action: Callable[[redis.Redis], T]) -> list[T]:
        answers = []
        for server in self._servers:
            with server.client() as client:
                answers.append(action(client))
        return answers

    async def close(self) -> None:
        for handle in self._handles:
            await handle.close()


@contextlib.asynccontextmanager
async def world_of(kind: str, servers: list[Server]) -> AsyncIterator[World]:
    world: World
    match kind:
        case "memory":
            world = MemoryWorld()
        case "valkey":
            world = ValkeyWorld(servers, servers[0].unix_url)
        case "cluster":
            world = ValkeyWorld(servers, cluster_url(servers))
        case _:
            raise AssertionError(kind)
    try:
        yield world
    finally:
        await world.close()
