"""A second vLLM that waits for the first one's death, without vLLM: made, taken, replaced, closed."""

from __future__ import annotations

import asyncio

from inference import standby as module
from inference.standby import Standby
from tests.support.virtual_time import virtual

START_S = 15.0


class Core:
    """Two flags and what was done to it."""

    def __init__(self) -> None:
        self.is_dead = False
        self.closed = 0
        self.reaped = 0

    async def close(self) -> None:
        self.closed += 1

    async def reap(self) -> None:
        self.reaped += 1


class Ground:
    def __init__(self) -> None:
        self.cores: list[Core] = []
        self.refusals = 0
        self.standby = Standby(self._make, self._start)
        self.standby.begin()

    def _make(self) -> Core:
        self.cores.append(Core())
        return self.cores[-1]

    async def _start(self, core: Core) -> None:
        await asyncio.sleep(START_S)
        if self.refusals:
            self.refusals -= 1
            raise OSError("no memory")


@virtual
async def test_one_that_is_being_started_is_waited_for() -> None:
    ground = Ground()
    await asyncio.sleep(START_S - 1)
    begun = asyncio.get_running_loop().time()
    assert await ground.standby.take() is ground.cores[0]
    assert 0.9 < asyncio.get_running_loop().time() - begun < 1.1
    await ground.standby.close()


@virtual
async def test_one_that_dies_while_it_waits_is_never_given_and_another_one_is_made() -> None:
    ground = Ground()
    await asyncio.sleep(START_S + 1)
    ground.cores[0].is_dead = True
    assert not ground.standby.is_ready and await ground.standby.take() is None
    await asyncio.sleep(module.WATCH_S + module.REST_S + START_S + 1)
    assert ground.cores[0].reaped == 1
    assert await ground.standby.take() is ground.cores[1]
    await ground.standby.close()


@virtual
async def test_one_that_cannot_start_is_tried_again_after_pauses_and_nobody_waits_for_it() -> None:
    ground = Ground()
    ground.refusals = 2
    await asyncio.sleep(START_S - 1)
    assert await ground.standby.take() is None, "it was waited for, and did not come"
    await asyncio.sleep(sum(module.AGAIN_S[:2]) + 2 * START_S + 1)
    assert [core.closed for core in ground.cores] == [1, 1, 0]
    assert await ground.standby.take() is ground.cores[2]
    await ground.standby.close()


@virtual
async def test_what_nobody_has_taken_is_closed_also_where_it_was_being_started() -> None:
    for after_s in (START_S + 1, START_S - 1):
        ground = Ground()
        await asyncio.sleep(after_s)
        await ground.standby.close()
        assert [core.closed for core in ground.cores] == [1]
        await asyncio.sleep(100)
        assert len(ground.cores) == 1
