"""Tasks are owned: none is forgotten, none takes the others with it."""

from __future__ import annotations

import asyncio

from transport.tasks import Tasks


async def test_closing_cancels_waits_and_lets_nothing_new_begin() -> None:
    tasks = Tasks()
    seen: list[str] = []

    async def lasting() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            seen.append("cleaned up")
            raise

    tasks.start(lasting())
    await asyncio.sleep(0)
    await tasks.close()
    assert seen == ["cleaned up"]
    late = lasting()
    tasks.start(late)
    assert len(tasks) == 0
    await tasks.close()
