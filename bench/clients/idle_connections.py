"""Ten thousand devices that say nothing, each with a parked session: what one of them costs the server in memory.

    python -m bench.clients.idle_connections --connections 10000 --hold-s 30

Sessions are made through the server, which is then started anew on the same data, so that they are parked for certain
and nothing that making them left behind hides what connections cost. Each connection reads its own session from the
start, is caught up, and then only answers pings. The client is this process, on bare sockets. Resident memory is the
server's, before the first connection (some were opened and closed, to load what is loaded once) and after the hold.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import selectors
import socket
import time

import psutil

from bench.reading_device import HANDSHAKE, framed
from bench.support import Option, report, run_bench
from tests.support.doors.server_process import ServerProcess
from tests.support.doors.wire_client import connected

FILES_BESIDE = 200
FLAGS = ("--engine", "sim", "--journal", "sqlite")


PONG = framed({"type": "pong"})


class Idle:
    """Connections that keep quiet. Frames are looked for by their text: nothing else is sent to them."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.pings = 0
        self.lost = 0
        self._sockets: list[socket.socket] = []
        self._selector = selectors.DefaultSelector()

    def open(self, session: str) -> None:
        """One connection that is caught up with its session."""
        one = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        one.sendall(HANDSHAKE)
        self._read_until(one, b"\r\n\r\n")
        one.sendall(framed({"type": "hello", "resume": [{"session": session, "offset": 0}]}))
        self._read_until(one, b'"caught_up"')
        one.setblocking(False)
        self._sockets.append(one)
        self._selector.register(one, selectors.EVENT_READ)

    @staticmethod
    def _read_until(one: socket.socket, wanted: bytes) -> None:
        data = b""
        while wanted not in data:
            more = one.recv(65536)
            if not more:
                raise RuntimeError(f"closed: {data[-300:]!r}")
            data += more

    def hold(self, seconds: float) -> None:
        """Answers pings for a while."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            for key, _ in self._selector.select(min(left, 0.5)):
                one = key.fileobj
                assert isinstance(one, socket.socket)
                data = one.recv(65536)
                if not data:
                    self.lost += 1
                    self._selector.unregister(one)
                elif b'"ping"' in data:
                    self.pings += 1
                    one.sendall(PONG)

    def close(self) -> None:
        self._selector.close()
        for one in self._sockets:
            one.close()


async def make_sessions(url: str, count: int) -> list[str]:
    """Sessions with one event each."""
    async with connected(url) as wire:
        names: list[str] = []
        while len(names) < count:
            batch = [f"idle-{number}" for number in range(len(names), min(count, len(names) + 24))]
            await asyncio.gather(*(wire.command("session.create", session=name, title=name) for name in batch))
            names += batch
        return names


def resident(pid: int) -> int:
    return int(psutil.Process(pid).memory_info().rss)


def main(arguments: argparse.Namespace) -> bool:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = arguments.connections + FILES_BESIDE
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise SystemExit(f"this needs {wanted} open files a process; the hard limit here is {hard} (ulimit -Hn)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    server = ServerProcess(*FLAGS)
    server.start()
    try:
        names = asyncio.run(make_sessions(server.url, arguments.connections))
        server.stop()
        server.start()
        warm = Idle(server.port)
        for name in names[:50]:
            warm.open(name)
        warm.close()
        time.sleep(1)
        before = resident(server.pid)
        idle = Idle(server.port)
        started = time.monotonic()
        for name in names:
            idle.open(name)
        opened_s = time.monotonic() - started
        connected_at = resident(server.pid)
        cpu = sum(psutil.Process(server.pid).cpu_times()[:2])
        idle.hold(arguments.hold_s)
        cpu = sum(psutil.Process(server.pid).cpu_times()[:2]) - cpu
        after = resident(server.pid)
        idle.close()
    finally:
        server.__exit__()
    each = (after - before) / arguments.connections / 1024
    report(
        "idle_connections",
        {
            "connections": arguments.connections,
            "lost": idle.lost,
            "kib_each": each,
            "kib_each_when_opened": (connected_at - before) / arguments.connections / 1024,
            "server_mib_before": before / 2**20,
            "server_mib_after": after / 2**20,
            "opened_per_s": arguments.connections / opened_s,
            "held_s": arguments.hold_s,
            "pings_answered": idle.pings,
            "server_cpu_share_while_idle": cpu / arguments.hold_s,
        },
    )
    return bool(each <= arguments.bar_kib and not idle.lost)


if __name__ == "__main__":
    run_bench(main, __doc__, connections=10000, hold_s=30.0, bar_kib=Option(20.0, "exit status 1 above this"))
