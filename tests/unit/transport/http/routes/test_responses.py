"""`/v1/responses`: begun, continued, read again, erased; and what cannot be combined."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from sessions.model.commands import ResponseErase, TurnCreate
from tests.support.doors.transport import FakeSessions, answering, gateway_over, http_client, memory_sessions
from transport.gateway import GatewayServices
from transport.openai.model_catalog import ModelCard


@pytest.fixture
async def sessions() -> FakeSessions:
    sessions = await memory_sessions()
    answering(sessions)
    return sessions


@pytest.fixture
async def client(sessions: FakeSessions) -> AsyncIterator[httpx.AsyncClient]:
    services = GatewayServices(models=lambda: [ModelCard(id="m")])
    async with http_client(gateway_over(sessions, services=services)) as client:
        yield client


async def test_an_answer_is_kept_and_continued(client: httpx.AsyncClient, sessions: FakeSessions) -> None:
    first = (await client.post("/v1/responses", json={"input": "hi"})).json()
    assert first["status"] == "completed" and first["output"][0]["content"][0]["text"] == "hello"
    again = (await client.get(f"/v1/responses/{first['id']}")).json()
    assert again["id"] == first["id"]
    second = await client.post("/v1/responses", json={"input": "and?", "previous_response_id": first["id"]})
    turns = [command for command in sessions.executed if isinstance(command, TurnCreate)]
    assert turns[1].session == turns[0].session and turns[1].after_response == first["id"]
    assert second.json()["previous_response_id"] == first["id"]
    items = (await client.get(f"/v1/responses/{first['id']}/input_items")).json()
    assert [item["role"] for item in items["data"]] == ["user"]


async def test_a_stream_can_be_read_again_from_any_number(client: httpx.AsyncClient) -> None:
    text = (await client.post("/v1/responses", json={"input": "hi", "stream": True})).text
    kinds = [line[7:] for line in text.splitlines() if line.startswith("event: ")]
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
    rest = (await client.get("/v1/responses/resp_0?stream=true&starting_after=2")).text
    assert [line[7:] for line in rest.splitlines() if line.startswith("event: ")] == kinds[3:]


async def test_a_stateless_answer_is_not_shown_again(client: httpx.AsyncClient) -> None:
    answer = (await client.post("/v1/responses", json={"input": "hi", "store": False})).json()
    assert answer["store"] is False
    assert (await client.get(f"/v1/responses/{answer['id']}")).status_code == 404
    gone_on = await client.post("/v1/responses", json={"input": "x", "previous_response_id": answer["id"]})
    assert gone_on.json()["error"]["param"] == "previous_response_id"


async def test_erasing_is_a_command_and_only_background_responses_are_cancelled(
    client: httpx.AsyncClient, sessions: FakeSessions
) -> None:
    answer = (await client.post("/v1/responses", json={"input": "hi"})).json()
    assert (await client.post(f"/v1/responses/{answer['id']}/cancel")).status_code == 400
    assert (await client.delete(f"/v1/responses/{answer['id']}")).json()["deleted"]
    assert isinstance(sessions.executed[-1], ResponseErase)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": "x", "previous_response_id": "r", "conversation": "s"}, "conversation"),
        ({"input": "x", "background": True, "store": False}, "background"),
        ({"input": "x", "conversation": "s", "store": False}, "store"),
        ({"input": "x", "previous_response_id": "r", "store": False}, "store"),
        ({"input": "x", "previous_response_id": "nothing"}, "previous_response_id"),
    ],
)
async def test_what_cannot_be_combined(client: httpx.AsyncClient, body: dict[str, Any], param: str) -> None:
    assert (await client.post("/v1/responses", json=body)).json()["error"]["param"] == param
