"""When a process collects its garbage."""

from __future__ import annotations

import asyncio

from tests.support.virtual_time import advance, virtual
from transport.ops.process_tuning import COLLECT_S, LOOK_S, collect_when_idle


class Process:
    """Uses `share` of a core, and counts its collections."""

    def __init__(self) -> None:
        self.share = 0.0
        self.collections = 0

    def cpu_s(self) -> float:
        return self.share * asyncio.get_running_loop().time()

    def collect(self) -> None:
        self.collections += 1


@virtual
async def test_a_process_collects_once_after_it_was_busy() -> None:
    process = Process()
    task = asyncio.create_task(collect_when_idle(process.cpu_s, process.collect))
    await advance(20 * LOOK_S)
    assert process.collections == 0, "nothing was done"
    process.share = 0.9
    await advance(3 * LOOK_S)
    assert process.collections == 0, "it is busy"
    process.share = 0.0
    await advance(20 * LOOK_S)
    assert process.collections == 1
    task.cancel()


@virtual
async def test_a_process_that_is_always_busy_collects_all_the_same() -> None:
    process = Process()
    process.share = 0.9
    task = asyncio.create_task(collect_when_idle(process.cpu_s, process.collect))
    await advance(COLLECT_S - LOOK_S)
    assert process.collections == 0
    await advance(2 * COLLECT_S)
    assert process.collections == 2
    task.cancel()
