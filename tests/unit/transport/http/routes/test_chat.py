"""`POST /v1/chat/completions`: whole, streamed, resumed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.support.doors.transport import answering, gateway_over, http_client, memory_sessions
from transport.gateway import GatewayServices
from transport.openai.model_catalog import ModelCard

BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
IDS = {"x-sessile-event-ids": "1"}


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    sessions = await memory_sessions()
    answering(sessions)
    services = GatewayServices(models=lambda: [ModelCard(id="m", sampling=frozenset())])
    async with http_client(gateway_over(sessions, services=services)) as client:
        yield client


def chunks(text: str) -> list[Any]:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


async def test_a_whole_answer(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/chat/completions", json=BODY)
    assert answer.json()["choices"][0]["message"]["content"] == "hello"
    assert answer.headers["x-session-id"] and answer.json()["usage"]["total_tokens"] == 3


async def test_a_stream_ends_with_usage_and_done(client: httpx.AsyncClient) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    text = (await client.post("/v1/chat/completions", json={**BODY, **options})).text
    assert text.endswith("data: [DONE]\n\n") and "id: " not in text
    *deltas, usage = chunks(text)
    assert "".join(each["choices"][0]["delta"].get("content") or "" for each in deltas) == "hello"
    assert usage["usage"]["completion_tokens"] == 2 and usage["choices"] == []


async def test_a_stream_goes_on_behind_the_last_id(client: httpx.AsyncClient) -> None:
    body = {**BODY, "stream": True}
    text = (await client.post("/v1/chat/completions", json=body, headers=IDS)).text
    first, *_ = [line[4:] for line in text.splitlines() if line.startswith("id: ")]
    rest = await client.post("/v1/chat/completions", json=body, headers={**IDS, "last-event-id": first})
    assert len(chunks(rest.text)) < len(chunks(text)) and rest.text.endswith("data: [DONE]\n\n")
    refused = await client.post("/v1/chat/completions", json=body, headers={"last-event-id": first})
    assert refused.json()["error"]["param"] == "last_event_id"


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"model": "other"}, "model"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"logprobs": True}, "logprobs"),
    ],
)
async def test_what_is_not_possible_is_named(client: httpx.AsyncClient, more: dict[str, Any], param: str) -> None:
    refused = await client.post("/v1/chat/completions", json={**BODY, **more})
    assert refused.status_code in (400, 404) and refused.json()["error"]["param"] == param
