"""How answers end at OpenAI's doors: what was broken off never looks whole, and an ended stream is not begun again."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

from sessions.model import commands as cm
from sessions.model.events import ResponseCreated
from sessions.model.types import LOCAL_PRINCIPAL, CommandId, SessionId
from tests.support.doors.openai_server import SIMULATED, Serving

LONG = "word " * 100_000


@pytest.mark.parametrize("deleted", [False, True])
@pytest.mark.parametrize("choices", [1, 2])
async def test_a_chat_that_was_broken_off_does_not_look_whole(server: Serving, deleted: bool, choices: int) -> None:
    server.engine.script += [LONG] * choices
    body = {"model": SIMULATED, "messages": [{"role": "user", "content": "hi"}], "stream": True, "n": choices}
    async with (
        httpx.AsyncClient(base_url=server.server.url, timeout=60) as http,
        http.stream("POST", "/v1/chat/completions", json=body) as answer,
    ):
        session, lines, broken = SessionId(answer.headers["x-session-id"]), [], False
        async for line in answer.aiter_lines():
            lines.append(line)
            if not broken and '"content":"' in line and '"content":""' not in line:
                broken = True
                await _break_off(server, session, deleted=deleted)
    assert broken and "data: [DONE]" not in lines
    shown: list[Any] = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    assert shown[-1]["error"]["code"] == ("session_deleted" if deleted else "response_cancelled")
    assert not shown[-1]["error"]["retryable"]
    assert not any(choice["finish_reason"] for chunk in shown[:-1] for choice in chunk["choices"])


async def _break_off(server: Serving, session: SessionId, *, deleted: bool) -> None:
    if deleted:
        await server.gateway.execute(LOCAL_PRINCIPAL, cm.SessionDelete(id=CommandId("gone"), session=session))
        return
    begun = [record.event for record in server.log(session) if isinstance(record.event, ResponseCreated)]
    for number, event in enumerate(begun):
        cancel = cm.ResponseCancel(id=CommandId(f"c{number}"), session=session, response_id=event.response_id)
        await server.gateway.execute(LOCAL_PRINCIPAL, cancel)


async def test_an_event_source_stops_behind_the_end_of_an_answer(
    client: openai.AsyncOpenAI, http: httpx.AsyncClient
) -> None:
    made = await client.responses.create(model=SIMULATED, input="hello")
    whole = await http.get(f"/v1/responses/{made.id}", params={"stream": "true"})
    ids = [line[4:] for line in whole.text.splitlines() if line.startswith("id: ")]
    assert whole.status_code == 200 and len(ids) == whole.text.count("event: ")
    for at, status in ((ids[-1], 204), (ids[0], 200)):
        again = await http.get(f"/v1/responses/{made.id}", params={"stream": "true"}, headers={"last-event-id": at})
        assert again.status_code == status
        assert again.text == "" if status == 204 else again.text.endswith(whole.text[-200:])
