"""Calls share a connection: each gets its own answer, and knows whether it may have happened."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis.exceptions import BusyLoadingError, ReadOnlyError

from actors.directory.pipelined_connection import CONNECT_ATTEMPTS, NotSent, PipelinedConnection, ReplyLost
from tests.support.cluster.redis_connection import FakeConnection
from tests.support.virtual_time import advance, outcome, virtual


def over(*answers: Any, refuses: int = 0) -> tuple[PipelinedConnection, FakeConnection]:
    connection = FakeConnection(*answers, refuses=refuses)
    return PipelinedConnection(lambda: connection, timeout_s=1.0), connection  # type: ignore[arg-type,return-value]


@virtual
async def test_a_cancelled_call_leaves_no_answer_to_the_next() -> None:
    lane, connection = over()
    cancelled = asyncio.create_task(lane.call("GET", "a"))
    await advance(0.1)
    cancelled.cancel()
    following = asyncio.create_task(lane.call("GET", "b"))
    await advance(0.1)
    connection.answer(b"of a")
    await advance(0.1)
    connection.answer(b"of b")
    assert await following == b"of b" and cancelled.cancelled()
    await lane.close()


@virtual
async def test_what_was_never_written_is_not_sent_and_what_was_is_lost() -> None:
    lane, _ = over(refuses=CONNECT_ATTEMPTS)
    assert isinstance(await outcome(lane.call("GET")), NotSent)
    await lane.close()
    lane, connection = over()
    assert isinstance(await outcome(lane.call("GET")), ReplyLost), "no answer in time"
    assert not connection.is_connected
    connection.answers = [b"fresh"]
    assert await lane.call("GET") == b"fresh" and connection.attempts == 2
    await lane.close()
    assert isinstance(await outcome(lane.call("GET")), NotSent)


@pytest.mark.parametrize(
    ("refusal", "kind"), [(BusyLoadingError("loading"), NotSent), (ReadOnlyError("a replica"), ReadOnlyError)]
)
def test_a_server_that_is_not_ready_or_not_the_master_is_connected_to_anew(
    refusal: Exception, kind: type[Exception]
) -> None:
    @virtual
    async def run() -> None:
        lane, connection = over(refusal, b"ok")
        assert isinstance(await outcome(lane.call("SET")), kind)
        assert await lane.call("SET") == b"ok" and connection.attempts == 2
        await lane.close()

    run()


@virtual
async def test_bytes_that_nobody_waits_for_close_the_connection_before_the_next_call() -> None:
    lane, connection = over(b"1", b"2")
    await lane.call("GET")
    connection.leftover = True
    assert await lane.call("GET") == b"2" and connection.attempts == 2
    await lane.close()
