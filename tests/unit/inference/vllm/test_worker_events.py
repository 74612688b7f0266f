"""Reports of the KV connector's workers: they arrive, and what makes no sense is skipped."""

from __future__ import annotations

import asyncio
from pathlib import Path

from inference.vllm.worker_events import (
    MENTIONS_NAME,
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
