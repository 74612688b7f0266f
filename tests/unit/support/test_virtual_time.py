"""The virtual loop itself: time jumps, order is fixed, and a wait that nothing can end is named."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.virtual_time import Deadlock, advance, run, settled, until, virtual


@virtual
async def test_time_passes_only_when_nothing_else_happens() -> None:
    loop = asyncio.get_running_loop()
    seen: list[tuple[str, float]] = []
    loop.call_later(3600.0, lambda: seen.append(("later", loop.time())))
    loop.call_soon(lambda: seen.append(("soon", loop.time())))
    await settled()
    assert seen == [("soon", 0.0)]
    await advance(7200.0)
    assert seen == [("soon", 0.0), ("later", 3600.0)]


@virtual
async def test_until_waits_for_what_a_timer_brings() -> None:
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    loop.call_later(10.0, done.set_result, None)
    await until(done.done, step_s=1.0)
    assert 10.0 <= loop.time() <= 11.0
    with pytest.raises(TimeoutError):
        await until(lambda: False, limit_s=1.0)


def test_a_wait_without_end_is_named() -> None:
    async def forever() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock):
        run(forever())


def test_cancellation_of_a_group_comes_in_the_order_of_creation() -> None:
    async def order() -> list[int]:
        cancelled: list[int] = []

        async def wait(number: int) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.append(number)

        async def fail() -> None:
            await settled()
            raise ValueError

        with pytest.raises(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                for number in range(20):
                    group.create_task(wait(number))
                group.create_task(fail())
        return cancelled

    assert run(order()) == run(order()) == list(range(20))
