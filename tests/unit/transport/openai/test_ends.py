"""Readers whose log ends before their answer, or has no such place as they ask for."""

from __future__ import annotations

import pytest

from sessions.model.errors import BadInput, Gone, NotFound
from sessions.model.events import SessionDeleted
from sessions.model.types import LOCAL_PRINCIPAL, Epoch, ItemId, ResponseId
from tests.support.doors.transport import begun, created, delta, gateway_over, key_of, memory_sessions, message
from transport.http.headers import EventId
from transport.openai.chat import ChatCompletionReader
from transport.openai.chat_render import StreamUsage
from transport.openai.conversations import ItemPageQuery, item_page
from transport.openai.log_cursor import LogCursor
from transport.openai.responses import ResponseReader
from transport.openai.resume import StartedTurn, resume
from transport.openai.turn_starter import TurnStarter

NAME = ResponseId("resp_1")


async def test_a_log_that_ends_before_its_answer_is_an_error_behind_what_was_sent() -> None:
    sessions = await memory_sessions()
    await sessions.append("s", created(), *begun(), delta("a", 3))
    gateway = gateway_over(sessions)
    response = ResponseReader(LogCursor(gateway, LOCAL_PRINCIPAL, key_of("s")), NAME, 1)
    started = StartedTurn(LogCursor(gateway, LOCAL_PRINCIPAL, key_of("s")), (NAME,), 1, b"chain")
    chat = ChatCompletionReader(TurnStarter(gateway), started, model="m", logprobs=False, usage=StreamUsage())
    await sessions.append("s", SessionDeleted())
    chunks = [chunk async for chunk in response.stream(starting_after=1, ids=EventId)]
    assert [chunk.splitlines()[0] for chunk in chunks[:2]] == [b"id: ep_s:4", b"id: ep_s:5"]
    assert b'"sequence_number":4' in chunks[-1] and chunks[-1].startswith(b"event: error")
    with pytest.raises(Gone):
        await chat.whole()


async def test_more_choices_than_there_are_and_an_item_that_is_not_there_are_refused() -> None:
    sessions = await memory_sessions()
    await sessions.append("s", created(), *begun(), delta("a", 3), *begun("item_b", "resp_2"))
    with pytest.raises(BadInput):
        await resume(gateway_over(sessions), LOCAL_PRINCIPAL, EventId(Epoch("ep_s"), 5, NAME, "0" * 12), choices=3)
    with pytest.raises(NotFound):
        item_page([message("a", "a")], ItemPageQuery(limit=20, order="asc", after=ItemId("d")))
