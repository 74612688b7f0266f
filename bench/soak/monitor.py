"""Samples what a cluster holds (memory, files, connections, directory entries), and how it grows."""

from __future__ import annotations

import asyncio
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final

import asyncpg
import msgspec
import psutil
import redis

from actors.directory.common import PARTITIONS
from testbed.chaos.cluster import ChaosCluster

HOUR_S: Final = 3600.0
TIMEOUT_S: Final = 2.0
FLAT: Final = {"memory MiB": (0.05, 8.0), "files": (0.05, 6.0), "connections": (0.05, 6.0), "entries": (0.10, 30.0)}
"""By what is measured: by which part of its mean, or by how much, it may rise in an hour and still be flat."""


class MeasuredLine(msgspec.Struct):
    """One thing measured over time: `what` of `who`; points are (seconds since the start, value)."""

    what: str
    who: str
    points: list[tuple[float, float]]


class Monitor:
    """`run` samples until it is cancelled. What does not answer has no sample then."""

    def __init__(self, cluster: ChaosCluster, *, every_s: float) -> None:
        self._cluster = cluster
        self._every_s = every_s
        self._began = time.monotonic()
        self._points: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)

    @property
    def lines(self) -> list[MeasuredLine]:
        return [MeasuredLine(what, who, points) for (what, who), points in sorted(self._points.items())]

    async def run(self) -> None:
        while True:
            await self.sample()
            await asyncio.sleep(self._every_s)

    async def sample(self) -> None:
        at = time.monotonic() - self._began
        for member in self._cluster.members.values():
            if member.process is not None and member.process.returncode is None:
                self._add(at, member.name, _process(member.process.pid))
        self._add(at, "Valkey", await asyncio.to_thread(_valkey, self._cluster))
        self._add(at, "PostgreSQL", await _postgres(self._cluster))

    def _add(self, at: float, who: str, values: dict[str, float]) -> None:
        for what, value in values.items():
            self._points[what, who].append((at, value))


def _process(pid: int) -> dict[str, float]:
    try:
        links = [os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd")]
        memory = psutil.Process(pid).memory_info().rss
    except (OSError, psutil.Error):  # it has just ended, or a file of it was just closed
        return {}
    sockets = sum(link.startswith("socket:") for link in links)
    return {"memory MiB": memory / 2**20, "files": len(links), "connections": sockets}


def _valkey(cluster: ChaosCluster) -> dict[str, float]:
    client = redis.Redis(
        unix_socket_path=str(cluster.valkey.socket),
        protocol=2,
        socket_timeout=TIMEOUT_S,
        socket_connect_timeout=TIMEOUT_S,
    )
    try:
        with client.pipeline(transaction=False) as pipe:
            pipe.info()
            for partition in range(PARTITIONS):
                pipe.hlen(f"{{sessile:{partition}}}:owners")
            info, *entries = pipe.execute()
    except redis.RedisError:
        return {}
    finally:
        client.close()
    return {
        "memory MiB": info["used_memory"] / 2**20,
        "connections": info["connected_clients"],
        "entries": sum(entries),
        "keys": info.get("db0", {}).get("keys", 0),
    }


async def _postgres(cluster: ChaosCluster) -> dict[str, float]:
    try:
        connection = await asyncpg.connect(cluster.postgres.dsn, timeout=TIMEOUT_S, command_timeout=TIMEOUT_S)
        try:
            row: Any = await connection.fetchrow(
                "SELECT (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend') AS connections,"
                " pg_database_size(current_database()) AS size"
            )
        finally:
            connection.terminate()
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
        return {}
    return {"connections": row["connections"], "journal MiB": row["size"] / 2**20}


# -- how it grows --------------------------------------------------------------------------------------------------


class Growth(msgspec.Struct):
    """How the last part of a line grew. `flat` None: not judged."""

    what: str
    who: str
    mean: float
    per_hour: float
    flat: bool | None


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Least squares, a second."""
    count = len(points)
    x_mean, y_mean = sum(x for x, _ in points) / count, sum(y for _, y in points) / count
    spread = sum((x - x_mean) ** 2 for x, _ in points)
    return sum((x - x_mean) * (y - y_mean) for x, y in points) / spread if spread else 0.0


def growth(lines: Iterable[MeasuredLine], judged: Iterable[str], *, last_s: float = HOUR_S) -> list[Growth]:
    """Over the last hour, or the last half of a shorter run, which is not judged. `judged`: whose lines are: who was
    never killed."""
    able, grown = set(judged), []
    for line in lines:
        if len(line.points) < 3:
            continue
        end = line.points[-1][0]
        last = [point for point in line.points if point[0] >= end - min(last_s, end / 2)]
        if len(last) < 3:
            continue
        mean, per_hour = sum(y for _, y in last) / len(last), slope(last) * HOUR_S
        flat: bool | None = None
        if line.who in able and line.what in FLAT and end >= 2 * last_s:
            part, least = FLAT[line.what]
            flat = per_hour <= max(part * mean, least)
        grown.append(Growth(line.what, line.who, mean, per_hour, flat))
    return grown
