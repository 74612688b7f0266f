"""Sessions that ran when vLLM died run again one at a time."""

from __future__ import annotations

import asyncio

from inference.vllm.crash_isolation import CrashIsolation
from tests.support.engines.kv import key


async def test_who_ran_when_it_died_begins_again_one_at_a_time() -> None:
    isolation, began, go_on = CrashIsolation(), list[str](), asyncio.Event()
    isolation.suspect([key("a"), key("b")])

    async def run(name: str, *, speaks: bool) -> None:
        async with isolation.of(key(name)) as passed:
            began.append(name)
            if speaks:
                passed()
            await go_on.wait()

    first = asyncio.create_task(run("a", speaks=False))
    tasks = [asyncio.create_task(run("b", speaks=True)), asyncio.create_task(run("c", speaks=True))]
    await asyncio.sleep(0)
    assert began == ["a", "c"], "b waits until a has said something or ended; c was not there"
    first.cancel()
    await asyncio.wait([first])
    await asyncio.sleep(0)
    assert began == ["a", "c", "b"]
    assert key("a") in isolation and key("b") not in isolation
    go_on.set()
    await asyncio.gather(*tasks)
    await run("a", speaks=True)
    assert key("a") not in isolation


async def test_a_suspect_that_is_cancelled_while_it_waits_leaves_nothing() -> None:
    isolation = CrashIsolation()
    isolation.suspect([key("a"), key("b")])
    async with isolation.of(key("a")) as passed:
        waiting = asyncio.create_task(isolation.of(key("b")).__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        passed()
    isolation.forget(key("b"))
    async with isolation.of(key("b")):
        assert key("b") not in isolation
