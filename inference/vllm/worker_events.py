"""Carries reports from the connector in vLLM's processes to the front, over datagram sockets in the staging folder.

Datagrams come from the copier's threads, never from vLLM's scheduler. A report waits for room for as long as there is a
front, however slow: it may be the one that a snapshot waits for. Mentions wait for none. The other direction needs no
socket: what the front has to say travels with the requests, as their transfer parameters.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

log = logging.getLogger(__name__)

SOCKET_NAME: Final = "front.sock"
MENTIONS_NAME: Final = "mentions.sock"  # a queue of their own: a kernel may hold as few as ten datagrams in one
_DATAGRAM_BYTES_MAX: Final = 64 << 10
_LOOK_S: Final = 1.0  # how often, in seconds, a report that waits for room checks whether its sender was closed
_READY_WAIT_S: Final = 10.0  # how many seconds the workers' reports may take once vLLM is up


class WorkerReady(msgspec.Struct, frozen=True, tag="ready"):
    """A worker's report that it has its KV memory; `layout` names how the bytes of a block lie."""

    rank: int
    world: int
    block_bytes: int
    layout: str


class WorkerUnfit(msgspec.Struct, frozen=True, tag="unfit"):
    """A worker's report that its KV cannot be moved, and why."""

    rank: int
    reason: str


class BlocksSaved(msgspec.Struct, frozen=True, tag="saved"):
    """A worker's report that it has written the request's first `num_blocks` blocks. With `closed` it has closed the
    file."""

    request: str
    rank: int
    num_blocks: int
    closed: bool
    failed: bool = False


class BlocksLoaded(msgspec.Struct, frozen=True, tag="loaded"):
    """A worker's report that a load has ended. `reason` says why the loaded blocks must not be used; "" if they can be.
    `resident_tokens`: how many tokens were on the device before the load."""

    request: str
    rank: int
    num_bytes: int
    seconds: float
    resident_tokens: int
    reason: str = ""


Report = WorkerReady | WorkerUnfit | BlocksSaved | BlocksLoaded
_DECODER: Final = msgspec.msgpack.Decoder(Report)


class WorkerEventSender:
    """Sends a worker's reports to the engine. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        self._path, self._mentions_path = str(folder / SOCKET_NAME), str(folder / MENTIONS_NAME)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(_LOOK_S)
        self._closed = threading.Event()
        self._mentions = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._mentions.setblocking(False)

    def send(self, report: Report) -> None:
        """Sends a report, and returns when it was sent, the engine has ended, or the sender is being closed."""
        data = msgspec.msgpack.encode(report)
        while not self._closed.is_set():
            try:
                self._socket.sendto(data, self._path)
            except TimeoutError:
                continue
            except OSError as exc:
                log.warning("the front did not get a report of %s: %s", type(report).__name__, exc)
            return

    def mention(self, report: Report) -> None:
        """Sends a report whose content a later report repeats; drops it if the socket has no room."""
        with contextlib.suppress(OSError):
            self._mentions.sendto(msgspec.msgpack.encode(report), self._mentions_path)

    def close(self) -> None:
        """Drops the reports that still wait for room."""
        self._closed.set()
        self._socket.close()
        self._mentions.close()


class WorkerEventListener:
    """Passes every report to `on_report`, on the event loop that made the listener."""

    def __init__(self, folder: Path, on_report: Callable[[Report], None]) -> None:
        self._on_report = on_report
        self._loop = asyncio.get_running_loop()
        self._sockets: dict[Path, socket.socket] = {}
        for path in (folder / SOCKET_NAME, folder / MENTIONS_NAME):
            opened = self._sockets[path] = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            opened.setblocking(False)
            opened.bind(str(path))
            self._loop.add_reader(opened, self._read, opened)

    def _read(self, opened: socket.socket) -> None:
        while True:
            try:
                data = opened.recv(_DATAGRAM_BYTES_MAX)
            except OSError:
                return  # nothing more for now, or closed
            try:
                report = _DECODER.decode(data)
            except msgspec.DecodeError as exc:
                log.warning("a report of the KV connector makes no sense: %s", exc)
                continue
            self._on_report(report)

    def close(self) -> None:
        for path, opened in self._sockets.items():
            self._loop.remove_reader(opened)
            opened.close()
            with contextlib.suppress(OSError):
                path.unlink()


async def all_ready(reports: asyncio.Queue[WorkerReady | WorkerUnfit]) -> list[WorkerReady] | str:
    """Waits for one report of each rank; returns them in order, or why KV cannot be moved."""
    ready: dict[int, WorkerReady] = {}
    try:
        async with asyncio.timeout(_READY_WAIT_S):
            while True:
                report = await reports.get()
                if isinstance(report, WorkerUnfit):
                    return report.reason
                ready[report.rank] = report
                if len(ready) == report.world:
                    break
    except TimeoutError:
        return "its workers did not report (are they on another machine?)"
    if len({(report.block_bytes, report.layout) for report in ready.values()}) > 1:
        return "its ranks hold different shares of a block"
    return [ready[rank] for rank in sorted(ready)]
