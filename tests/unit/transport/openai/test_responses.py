"""One response that is read from its log: who may read it, and how its stream ends."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from sessions.model.errors import BadInput, NotFound
from sessions.model.events import ERASED, SessionDeleted
from sessions.model.types import LOCAL_PRINCIPAL, Epoch, ResponseId
from tests.support.doors.transport import (
    FakeSessions,
    begun,
    created,
    delta,
    gateway_over,
    key_of,
    memory_sessions,
    retracted,
)
from transport.http.headers import EventId
from transport.openai.log_cursor import LogCursor
from transport.openai.responses import ResponseReader

NAME = ResponseId("resp_1")


async def opened(sessions: FakeSessions) -> ResponseReader:
    await sessions.append("s", created(), *begun(), delta("a", 3))
    return ResponseReader(LogCursor(gateway_over(sessions), LOCAL_PRINCIPAL, key_of("s")), NAME, 1)


async def test_it_is_read_as_it_stands() -> None:
    reader = await opened(await memory_sessions())
    await reader.check()
    assert (await reader.body()).status == "in_progress"
    reader.cursor.close()


async def test_one_that_was_erased_is_not_there() -> None:
    sessions = await memory_sessions()
    reader = await opened(sessions)
    await sessions.append("s", replace(retracted(0, 1), category=ERASED))
    with pytest.raises(NotFound):
        await reader.check()
    reader.cursor.close()


async def test_a_reader_cannot_have_seen_another_response() -> None:
    reader = await opened(await memory_sessions())
    await reader.check_seen(EventId(Epoch("ep_s"), 5, NAME))
    for wrong in (EventId(Epoch("ep_s"), 5, ResponseId("other")), EventId(Epoch("ep_s"), 9, NAME)):
        with pytest.raises(BadInput):
            await reader.check_seen(wrong)
    reader.cursor.close()


async def test_a_stream_that_breaks_ends_in_an_error_behind_what_was_sent() -> None:
    sessions = await memory_sessions()
    reader = await opened(sessions)
    await sessions.append("s", SessionDeleted())
    chunks = [chunk async for chunk in reader.stream(starting_after=1, ids=EventId)]
    assert [chunk.splitlines()[0] for chunk in chunks[:2]] == [b"id: ep_s:4", b"id: ep_s:5"]
    assert b'"sequence_number":4' in chunks[-1] and chunks[-1].startswith(b"event: error")
