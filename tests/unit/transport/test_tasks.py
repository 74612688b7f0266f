"""Tasks are owned: none is forgotten, none takes the others with it."""

from __future__ import annotations

import asyncio

from structlog.testing import capture_logs

from transport.tasks import Tasks


async def test_a_failure_is_logged_and_counted_and_the_others_go_on() -> None:
    tasks = Tasks()
    done: list[str] = []

    async def works() -> None:
        await asyncio.sleep(0)
        done.append("works")

    async def fails() -> None:
        raise ValueError("ours")

    with capture_logs() as logs:
        tasks.start(fails())
        tasks.start(works())
        assert len(tasks) == 2
        await tasks.settled()
    assert (done, tasks.failures, len(tasks)) == (["works"], 1, 0)
    assert [entry["event"] for entry in logs] == ["task_failed"]


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
