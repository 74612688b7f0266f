"""Finds the server that a partition lives on, and the connection to it: one server (plain, unix, Sentinel) or a
cluster.

`Servers.call` sends a command to the server of a key and raises what `PipelinedConnection.call` raises. On a cluster it
follows MOVED and ASK, and reads the map of slots again when a node has left; `NotSent` and `ReplyLost` keep their
meaning, because only calls that no server has accepted are sent on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

from redis.asyncio import Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.connection import AbstractConnection
from redis.crc import key_slot
from redis.exceptions import AskError, ClusterDownError, MovedError, RedisClusterException, RedisError, TryAgainError

from actors.directory.pipelined_connection import NotSent, PipelinedConnection, Word

HOPS_MAX: Final = 5
TRY_AGAIN_PAUSE_S: Final = 0.05
AWAY: Final = (RedisError, RedisClusterException, OSError)  # the second is none of the first


class Servers(Protocol):
    """The servers of a directory. `together` is whether one script may touch several partitions (not in a cluster)."""

    @property
    def together(self) -> bool: ...

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def call(self, key: str, *words: Word) -> Any: ...

    async def refresh(self) -> None:
        """Reads the map of servers again. Raises NotSent."""
        ...

    def spread(self, keys: Iterable[str]) -> list[tuple[Callable[[], AbstractConnection], list[str]]]:
        """Groups keys by server; returns for each server a function that makes a connection to it, and its keys."""
        ...


class StandaloneServer:
    together = True

    def __init__(self, client: Redis, *, timeout_s: float) -> None:
        self._client = client
        self._lane = PipelinedConnection(self._connection, timeout_s=timeout_s)

    def _connection(self) -> AbstractConnection:
        connection: AbstractConnection = self._client.connection_pool.make_connection()  # type: ignore[no-untyped-call]
        return connection

    async def open(self) -> None:
        await self._lane.call("PING")

    async def close(self) -> None:
        await self._lane.close()
        await self._client.aclose()

    async def call(self, key: str, *words: Word) -> Any:
        return await self._lane.call(*words)

    async def refresh(self) -> None:
        pass  # each new connection resolves the name, or asks the Sentinels, by itself

    def spread(self, keys: Iterable[str]) -> list[tuple[Callable[[], AbstractConnection], list[str]]]:
        return [(self._connection, list(keys))]


class ClusterServers:
    together = False

    def __init__(self, client: RedisCluster, *, timeout_s: float) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self._lanes: dict[str, PipelinedConnection] = {}
        self._refreshing: asyncio.Task[None] | None = None

    async def open(self) -> None:
        try:
            await self._client.initialize()
        except AWAY as error:
            raise NotSent(f"{type(error).__name__}: {error}") from error

    async def close(self) -> None:
        if self._refreshing is not None:
            await asyncio.gather(self._refreshing, return_exceptions=True)
        for lane in self._lanes.values():
            await lane.close()
        self._lanes.clear()
        await self._client.aclose()

    async def call(self, key: str, *words: Word) -> Any:
        slot = key_slot(key.encode())
        redirect: str | None = None  # a node that serves this one call for a slot on the move
        refreshed = False
        for _ in range(HOPS_MAX):
            try:
                lane = self._lane(redirect) if redirect else self._lane(self._node(slot).name)
                return await lane.call(*words, asking=redirect is not None)
            except MovedError as error:
                redirect = None
                await self._client.nodes_manager.move_slot(error)
            except AskError as error:
                redirect = f"{error.host}:{error.port}"
            except TryAgainError:
                await asyncio.sleep(TRY_AGAIN_PAUSE_S)
            except ClusterDownError as error:
                raise NotSent(f"{type(error).__name__}: {error}") from error
            except NotSent:
                if refreshed:
                    raise
                refreshed, redirect = True, None
                before = self._name(slot)
                await self.refresh()
                if self._name(slot) == before:
                    raise
        raise NotSent(f"no server took the call after {HOPS_MAX} hops")

    async def refresh(self) -> None:
        """Reads the map of slots again. Concurrent callers wait for the one reading that runs, which no caller's
        cancellation interrupts."""
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.get_running_loop().create_task(self._refresh(), name="directory-cluster-map")
        await asyncio.shield(self._refreshing)

    async def _refresh(self) -> None:
        nodes = self._client.nodes_manager
        try:
            await nodes.initialize()
        except AWAY as error:
            raise NotSent(f"{type(error).__name__}: {error}") from error
        for name in [name for name in self._lanes if name not in nodes.nodes_cache]:
            await self._lanes.pop(name).close()

    def _node(self, slot: int) -> ClusterNode:
        try:
            return self._client.nodes_manager.get_node_from_slot(slot)
        except (*AWAY, KeyError) as error:  # the latter: the map was never read
            raise NotSent(f"{type(error).__name__}: {error}") from error

    def _name(self, slot: int) -> str | None:
        """Returns the name of a slot's node; None if the map names none, because it was never read or has a gap."""
        try:
            return self._node(slot).name
        except NotSent:
            return None

    def _lane(self, name: str) -> PipelinedConnection:
        lane = self._lanes.get(name)
        if lane is None:
            node = self._client.get_node(node_name=name)
            if node is None:
                raise NotSent(f"{name} is not a node of the cluster that we know")
            lane = self._lanes[name] = PipelinedConnection(lambda: _connection_to(node), timeout_s=self._timeout_s)
        return lane

    def spread(self, keys: Iterable[str]) -> list[tuple[Callable[[], AbstractConnection], list[str]]]:
        nodes: dict[str, tuple[ClusterNode, list[str]]] = {}
        for key in keys:
            node = self._node(key_slot(key.encode()))
            nodes.setdefault(node.name, (node, []))[1].append(key)
        return [(_maker(node), keys) for node, keys in nodes.values()]


def _connection_to(node: ClusterNode) -> AbstractConnection:
    return node.connection_class(**node.connection_kwargs)


def _maker(node: ClusterNode) -> Callable[[], AbstractConnection]:
    return lambda: _connection_to(node)


def servers_for(client: Redis | RedisCluster, *, timeout_s: float) -> Servers:
    if isinstance(client, RedisCluster):
        return ClusterServers(client, timeout_s=timeout_s)
    return StandaloneServer(client, timeout_s=timeout_s)
