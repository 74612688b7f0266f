"""Waiting at a start: until when, how often, and what is said meanwhile."""

from __future__ import annotations

import asyncio

import pytest
import structlog.testing

from sessions.model.errors import BadInput, Unavailable
from tests.support.virtual_time import virtual
from transport.cli.start.start_stopped import StartStopped
from transport.cli.start.startup import PAUSE_MAX_S, WITHOUT_END, Startup

AWAY = Unavailable("directory_unavailable", "The session directory does not answer.")


class Dependency:
    """Away for the first attempts."""

    def __init__(self, failures: int, error: Exception = AWAY) -> None:
        self.left = failures
        self.error = error
        self.reasons: list[str | None] = []

    async def open(self, startup: Startup) -> str:
        self.reasons.append(startup.readiness())
        if self.left:
            self.left -= 1
            raise self.error
        return "open"


@virtual
async def test_it_waits_with_growing_pauses_and_says_so() -> None:
    startup, directory = Startup(asyncio.Event()), Dependency(8)
    with structlog.testing.capture_logs() as logged:
        assert await startup.reach("directory", lambda: directory.open(startup)) == "open"
    assert directory.reasons == ["starting"] + 8 * ["waiting for the directory"]
    awaited = [each for each in logged if each["event"] == "dependency_awaited"]
    assert [each["next_try_s"] for each in awaited] == [0.5, 1, 2, 4, 8, PAUSE_MAX_S, PAUSE_MAX_S, PAUSE_MAX_S]
    assert {(each["name"], each["error"]) for each in awaited} == {("directory", AWAY.public_message)}
    assert [each["waited_s"] for each in awaited] == [0, 0.5, 1.5, 3.5, 7.5, 15.5, 30.5, 45.5]
    assert {each["hint"] for each in awaited} == {WITHOUT_END}
    (reached,) = (each for each in logged if each["event"] == "dependency_reached")
    assert reached["after_s"] == pytest.approx(60.5)
    assert startup.readiness() == "starting"


@virtual
async def test_what_is_there_at_once_is_not_mentioned() -> None:
    startup, journal = Startup(asyncio.Event()), Dependency(0)
    with structlog.testing.capture_logs() as logged:
        await startup.reach("journal", lambda: journal.open(startup))
    assert logged == []


@pytest.mark.parametrize(
    "error",
    [BadInput("directory_unsuitable", "refuses our password"), Unavailable("journal_newer", "newer", retryable=False)],
)
@virtual
async def test_what_does_not_mend_by_itself_ends_the_start(error: Exception) -> None:
    startup, directory = Startup(asyncio.Event()), Dependency(2, error)
    with pytest.raises(type(error)):
        await startup.reach("directory", lambda: directory.open(startup))
    assert len(directory.reasons) == 1


@virtual
async def test_a_stop_signal_ends_the_waiting_at_once() -> None:
    stop = asyncio.Event()
    startup, directory = Startup(stop), Dependency(100)
    loop = asyncio.get_running_loop()
    loop.call_later(20, stop.set)
    begun = loop.time()
    with pytest.raises(StartStopped):
        await startup.reach("directory", lambda: directory.open(startup))
    assert loop.time() - begun == pytest.approx(20)


@virtual
async def test_a_process_that_is_up_says_itself_whether_traffic_is_welcome() -> None:
    startup, reasons = Startup(asyncio.Event()), ["no replica is reachable"]
    startup.finish(lambda: reasons[-1] if reasons else None)
    assert startup.readiness() == "no replica is reachable"
    reasons.clear()
    assert startup.readiness() is None
