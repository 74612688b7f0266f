"""One attempt per session: callers share it, survive each other, and learn when it is given up."""

from __future__ import annotations

import asyncio

import pytest

from actors.hosting.single_flight import SingleFlight, shutting_down
from sessions.model.errors import Unavailable
from sessions.model.types import SessionId, SessionKey, TenantId
from tests.support.virtual_time import advance, virtual

KEY = SessionKey(TenantId("t"), SessionId("s"))


@virtual
async def test_callers_share_an_attempt_and_one_that_gives_up_takes_nothing_from_the_other() -> None:
    flights, go_on = SingleFlight[str](shutting_down, ended=lambda key, error: None), asyncio.Event()

    async def attempt() -> str:
        await go_on.wait()
        return "done"

    task = flights.begin(KEY, attempt())
    first, second = (asyncio.create_task(flights.join(task)) for _ in range(2))
    await advance(0.1)
    first.cancel()
    await advance(0.1)
    assert KEY in flights and list(flights) == [KEY]
    go_on.set()
    assert await second == "done" and first.cancelled()
    await advance(0.1)
    assert len(flights) == 0 and flights.get(KEY) is None


@virtual
async def test_a_failure_reaches_every_caller_and_is_reported_once() -> None:
    failures: list[tuple[SessionKey, Exception]] = []
    flights = SingleFlight[str](shutting_down, ended=lambda key, error: failures.append((key, error)))
    trouble = Unavailable("away", "away")

    async def attempt() -> str:
        await asyncio.sleep(0.1)
        raise trouble

    task = flights.begin(KEY, attempt())
    answers = await asyncio.gather(flights.join(task), flights.join(task), return_exceptions=True)
    assert list(answers) == [trouble, trouble] and failures == [(KEY, trouble)]


@virtual
async def test_closing_ends_the_attempt_and_its_callers_are_not_cancelled_by_it() -> None:
    flights = SingleFlight[str](shutting_down, ended=lambda key, error: None)

    async def attempt() -> str:
        await asyncio.get_running_loop().create_future()
        return "never"

    waiting = asyncio.create_task(flights.join(flights.begin(KEY, attempt())))
    await advance(0.1)
    await flights.close()
    with pytest.raises(Unavailable) as interrupted:
        await waiting
    assert interrupted.value.code == "shutting_down"
