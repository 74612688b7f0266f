"""Reports of the KV connector's workers: they arrive, and what makes no sense is skipped."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from pathlib import Path

import msgspec
import pytest

from inference.vllm.worker_events import (
    MENTIONS_NAME,
    SOCKET_NAME,
    BlocksLoaded,
    BlocksSaved,
    Report,
    WorkerEventListener,
    WorkerEventSender,
)


async def test_reports_arrive_and_nonsense_is_passed_over(tmp_path: Path) -> None:
    heard: list[Report] = []
    reports: list[Report] = []
    arrived = asyncio.Event()

    def hear(report: Report) -> None:
        heard.append(report)
        if reports == heard:
            arrived.set()

    listener = WorkerEventListener(tmp_path, hear)
    sender = WorkerEventSender(tmp_path)
    for number in range(1000):  # nobody reads yet: what has no room is not waited for
        sender.mention(BlocksSaved("r", 0, number, False))
    listener._read(listener._sockets[tmp_path / MENTIONS_NAME])
    assert [report.num_blocks for report in heard if isinstance(report, BlocksSaved)] == list(range(len(heard))) != []
    heard.clear()
    reports += [BlocksSaved("r", 0, 3, True), BlocksLoaded("r", 0, 10, 0.5, 0, "bad_chunk")]
    sender.send(reports[0])
    sender._socket.sendto(b"\xc1", str(tmp_path / "front.sock"))
    sender.send(reports[1])
    async with asyncio.timeout(60):
        await arrived.wait()
    assert heard == reports
    listener.close()
    sender.send(reports[0])  # nobody listens: nothing happens
    sender.close()


async def test_the_end_of_a_file_waits_for_a_front_that_is_slow_to_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[Report] = []
    listener = WorkerEventListener(tmp_path, heard.append)
    asyncio.get_running_loop().remove_reader(listener._sockets[tmp_path / SOCKET_NAME])  # it does not read for now
    sender = WorkerEventSender(tmp_path)
    sender._socket.setblocking(False)
    told = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            sender._socket.sendto(msgspec.msgpack.encode(BlocksSaved("r", 0, told, False)), str(tmp_path / SOCKET_NAME))
            told += 1
    full, tries = threading.Event(), 0

    class Impatient:
        """A socket whose every wait for room is over at once."""

        def sendto(self, data: bytes, path: str) -> None:
            nonlocal tries
            try:
                real.sendto(data, path)
            except BlockingIOError:
                tries += 1
                if tries == 100:
                    full.set()
                raise TimeoutError from None

        def close(self) -> None:
            real.close()

    real = sender._socket
    monkeypatch.setattr(sender, "_socket", Impatient())
    closing = asyncio.create_task(asyncio.to_thread(sender.send, BlocksSaved("r", 0, told, True)))
    assert await asyncio.to_thread(full.wait, 60)
    while not closing.done():
        listener._read(listener._sockets[tmp_path / SOCKET_NAME])
        await asyncio.sleep(0)
    listener._read(listener._sockets[tmp_path / SOCKET_NAME])
    assert heard[-1] == BlocksSaved("r", 0, told, True) and len(heard) == told + 1
    sender.close()
    sender.send(heard[-1])  # nobody waits for room any more
    listener.close()
