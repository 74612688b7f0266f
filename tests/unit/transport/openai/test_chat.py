"""A chat completion that is read from its log: how it ends when something goes wrong."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from sessions.model.errors import Gone
from sessions.model.events import ResponseCreated, ResponseFailed, SessionDeleted
from sessions.model.types import LOCAL_PRINCIPAL, ResponseId
from tests.support.doors.transport import FakeSessions, begun, created, delta, gateway_over, key_of, memory_sessions
from transport.openai.chat import ChatCompletionReader
from transport.openai.chat_render import StreamUsage
from transport.openai.log_cursor import LogCursor
from transport.openai.resume import StartedTurn
from transport.openai.turn_starter import TurnStarter


async def reader(sessions: FakeSessions) -> ChatCompletionReader:
    gateway = gateway_over(sessions)
    cursor = LogCursor(gateway, LOCAL_PRINCIPAL, key_of("s"))
    started = StartedTurn(cursor, (ResponseId("resp_1"),), 1, b"chain")
    return ChatCompletionReader(TurnStarter(gateway), started, model="m", logprobs=False, usage=StreamUsage())


async def test_a_log_that_ends_before_the_answer_is_an_error() -> None:
    sessions = await memory_sessions()
    await sessions.append("s", created(), *begun())
    await sessions.append("s", SessionDeleted())
    with pytest.raises(Gone):
        await (await reader(sessions)).whole()


async def test_what_goes_wrong_once_an_answer_was_accepted_is_in_the_stream() -> None:
    sessions = await memory_sessions()
    first, *rest = begun()
    assert isinstance(first, ResponseCreated)
    body = replace(first.response, status="failed", error={"code": "content_filter", "message": "no"})
    failed = ResponseFailed(response_id=body.id, sequence_number=9, response=body)
    await sessions.append("s", created(), first, *rest, failed)
    role, error = [chunk async for chunk in (await reader(sessions)).stream()]
    assert b'"role":"assistant"' in role and b'"content_filter"' in error
    again = await memory_sessions()
    await again.append("s", created(), first, *rest, delta("a", 3), failed)
    chunks = [chunk async for chunk in (await reader(again)).stream()]
    assert b'"content":"a"' in chunks[1] and b'"content_filter"' in chunks[-1]
