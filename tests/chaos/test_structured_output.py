"""Answers in a fixed format on real llama.cpp, whose server is killed in mid-answer: they end as their schema says, and
what readers have of them stays."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from testbed.server_process import ServerProcess
from testbed.wire_client import TERMINAL, connected

pytestmark = [pytest.mark.chaos, pytest.mark.model, pytest.mark.timeout(240)]

KILLS = 2
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 4, "maxLength": 16},
        "colour": {"enum": ["grün", "赤", "blue 😀"]},
        "code": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"},
    },
    "required": ["name", "colour", "code"],
    "additionalProperties": False,
}
PEOPLE: dict[str, Any] = {
    "type": "object",
    "properties": {"people": {"type": "array", "items": PERSON, "minItems": 10, "maxItems": 10}},
    "required": ["people"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "name": "store_people", "parameters": PEOPLE}
FORMAT = {"format": {"type": "json_schema", "name": "people", "schema": PEOPLE}}
WAYS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "format": ({}, {"text": FORMAT}, "response.output_text.delta"),
    "tool call": ({"tools": [TOOL]}, {"tool_choice": "required"}, "response.function_call_arguments.delta"),
}


@pytest.fixture
def server(model_path: Path, tmp_path: Path) -> Iterator[ServerProcess]:
    made = ServerProcess(
        *("--model", str(model_path), "--chat-template", "chatml", "--slots", "1", "--threads", "1"),
        *("--context", "2048"),
        data=str(tmp_path / "data"),
    )
    with made:
        yield made


async def read(server: ServerProcess, session: str, response: str, delta: str, beyond: int | None) -> tuple[str, str]:
    """The answer as its log has it, to its end or `beyond` so many characters; and the type of the last event."""
    text = ""
    async with connected(server.url) as wire:
        await wire.command("subscribe", session=session, offset=0)
        while True:
            event = (await wire.events.get())["event"]
            if event.get("response_id") != response:
                continue
            if event["type"] == delta:
                text += event["delta"]
            if event["type"] in TERMINAL or (beyond is not None and len(text) > beyond):
                return text, event["type"]


@pytest.mark.parametrize("way", WAYS)
async def test_a_constrained_answer_outlives_its_server(server: ServerProcess, way: str) -> None:
    of_session, of_message, delta = WAYS[way]
    async with connected(server.url) as wire:
        session = (await wire.command("session.create", **of_session))["session"]
        fields = {"content": "Make up some people.", "max_output_tokens": 1_200, "temperature": 0.7, "seed": 5}
        response = (await wire.command("message.create", session=session, **fields, **of_message))["response_id"]
    released = ""
    for _ in range(KILLS):
        text, kind = await read(server, session, response, delta, len(released) + 60)
        assert kind == delta and text.startswith(released)
        released = text
        server.kill()
        server.start()
    whole, kind = await read(server, session, response, delta, None)
    assert kind == "response.completed"
    assert whole.startswith(released)
    jsonschema_rs.validator_for(PEOPLE).validate(json.loads(whole))
