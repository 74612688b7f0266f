"""Requests and histories as LibreChat, n8n, Home Assistant and Open WebUI send them, answered as their authors expect.

LibreChat's and n8n's are what LangChain's `ChatOpenAI`, configured as both do it, puts on the wire; Home Assistant's
follow its `openai_conversation`, and Open WebUI's its prompts and the request of its page. Each asks with a tool, reads
the call out of the stream as its code does, resends all of it with the tool's output in its own way, and sends what it
asks besides (titles, structures). The other popular clients run unchanged in `tests/clients` and `tests/sdks`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import httpx
import pytest

from tests.support.doors.openai_server import SIMULATED, Serving

Body = dict[str, Any]
ARGUMENTS: Final = {"room": "hall", "on": True}
CALL: Final = f'<tool_call>\n{{"name": "lights", "arguments": {json.dumps(ARGUMENTS)}}}\n</tool_call>'
ANSWER: Final = "The lights in the hall are on."
SPARE_TOKENS: Final = 1  # the last one is always computed
SCHEMA: Final = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {"room": {"type": "string"}, "on": {"type": "boolean"}},
    "required": ["room"],
    "additionalProperties": False,
}
TITLES: Final = {
    "type": "object",
    "properties": {
        "language": {"type": "string", "description": "The detected language", "title": "extract"},
        "title": {"type": "string", "description": "A concise title in the detected language", "title": "extract"},
    },
    "required": ["language", "title"],
    "additionalProperties": False,
    "title": "extract",
}


@dataclass(frozen=True, kw_only=True)
class Client:
    """What one client sends: its settings with the first messages, then the call as it resends it, with its output."""

    path: str = "chat/completions"
    opening: Body
    resent: Callable[[str, str], list[Body]]  # (the call's id, its arguments)
    asked_besides: tuple[Body, ...] = ()  # each is answered with an object, a call or words

    @property
    def history(self) -> str:
        return "messages" if self.path == "chat/completions" else "input"


def chat_tool(**more: Any) -> list[Body]:
    function = {"name": "lights", "description": "Switches lights.", "parameters": SCHEMA, **more}
    return [{"type": "function", "function": function}]


def as_langchain(call_id: str, arguments: str) -> list[Body]:
    compact = json.dumps(json.loads(arguments), separators=(",", ":"))
    call = {"id": call_id, "type": "function", "function": {"name": "lights", "arguments": compact}}
    return [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": '[{"response":"ok"}]', "name": "lights", "tool_call_id": call_id},
    ]


def as_langchain_responses(call_id: str, arguments: str) -> list[Body]:
    compact = json.dumps(json.loads(arguments), separators=(",", ":"))
    return [
        {"type": "message", "role": "assistant", "content": ""},
        {"type": "function_call", "name": "lights", "arguments": compact, "call_id": call_id},
        {"type": "function_call_output", "call_id": call_id, "output": '[{"response":"ok"}]'},
    ]


def as_home_assistant(call_id: str, arguments: str) -> list[Body]:
    again = json.dumps(json.loads(arguments))
    return [
        {"type": "function_call", "name": "lights", "arguments": again, "call_id": call_id},
        {"type": "function_call_output", "call_id": call_id, "output": json.dumps({"success": True, "data": {}})},
    ]


def as_open_webui(call_id: str, arguments: str) -> list[Body]:
    call = {"index": 0, "id": call_id, "type": "function", "function": {"name": "lights", "arguments": arguments}}
    return [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call_id, "content": '{"status": "success"}'},
    ]


def ask(text: str, **more: Any) -> Body:
    return {"model": SIMULATED, "messages": [{"role": "user", "content": text}], **more}


CLIENTS: Final = {
    "n8n": Client(
        opening={
            "model": SIMULATED,
            "temperature": 0.7,
            "top_p": 1,
            "stream": True,
            "tools": chat_tool(strict=False),
            "stream_options": {"include_usage": True},
            "messages": [
                {"role": "system", "content": "You are a helpful assistant"},
                {"role": "user", "content": "Lights on."},
            ],
        },
        resent=as_langchain,
        asked_besides=(ask("Lights, as JSON.", stream=False, response_format={"type": "json_object"}),),
    ),
    "n8n, Responses": Client(
        path="responses",
        opening={
            "model": SIMULATED,
            "stream": True,
            "tools": [
                {"type": "function", "name": "lights", "parameters": SCHEMA, "description": "x", "strict": False}
            ],
            "text": {},
            "input": [
                {"type": "message", "role": "system", "content": "You are a helpful assistant"},
                {"type": "message", "role": "user", "content": "Lights on."},
            ],
        },
        resent=as_langchain_responses,
    ),
    "LibreChat": Client(
        opening={
            "model": SIMULATED,
            "temperature": 1,
            "top_p": 1,
            "frequency_penalty": 0,
            "presence_penalty": 0,
            "user": "66f1c0ffee",
            "stream": True,
            "tools": chat_tool(),
            "stream_options": {"include_usage": True},
            "messages": [
                {"role": "system", "content": "Current date: 2026-11-28"},
                {"role": "user", "content": [{"type": "text", "text": "Lights on."}]},
            ],
        },
        resent=as_langchain,
        asked_besides=(
            ask(
                "Analyze this conversation and provide:\n1. The detected language\n2. A concise title\n\nUser: On.",
                user="66f1c0ffee",
                stream=False,
                response_format={
                    "type": "json_schema",
                    "json_schema": {"name": "extract", "strict": True, "schema": TITLES},
                },
            ),
            ask(
                "Title?",
                stream=False,
                tools=[{"type": "function", "function": {"name": "record_conversation_info", "parameters": TITLES}}],
                tool_choice={"type": "function", "function": {"name": "record_conversation_info"}},
            ),
            ask("Provide a concise, 5-word-or-less title for the conversation.", user="66f1c0ffee", stream=False),
        ),
    ),
    "Home Assistant": Client(
        path="responses",
        opening={
            "model": SIMULATED,
            "max_output_tokens": 3000,
            "top_p": 1.0,
            "temperature": 1.0,
            "user": "01KC0FFEE0000000000000000",
            "store": False,
            "stream": True,
            "tools": [
                {
                    "type": "function",
                    "name": "lights",
                    "parameters": {
                        "type": "object",
                        "properties": {"room": {"type": "string"}, "on": {"type": "boolean"}},
                        "required": [],
                    },
                    "description": "Switches lights.",
                    "strict": False,
                }
            ],
            "input": [
                {"type": "message", "role": "developer", "content": "You are a voice assistant for Home Assistant."},
                {"type": "message", "role": "user", "content": "Lights on."},
            ],
        },
        resent=as_home_assistant,
        asked_besides=(
            {
                "model": SIMULATED,
                "input": [{"type": "message", "role": "user", "content": "Which lights?"}],
                "max_output_tokens": 3000,
                "store": False,
                "stream": False,
                "text": {
                    "format": {
                        "type": "json_schema",
                        "name": "lights",
                        "schema": {
                            "type": "object",
                            "properties": {"room": {"type": "string"}, "note": {"type": ["string", "null"]}},
                            "required": ["room", "note"],
                            "strict": True,
                            "additionalProperties": False,
                        },
                    }
                },
            },
        ),
    ),
    "Open WebUI": Client(
        opening={
            "stream": True,
            "model": SIMULATED,
            "messages": [{"role": "user", "content": "Lights on."}],
            "tools": chat_tool(),
            "stream_options": {"include_usage": True},
        },
        resent=as_open_webui,
        asked_besides=(
            ask('### Task:\nGenerate a concise title.\nJSON format: { "title": "..." }', stream=False),
            ask("### Task:\nGenerate 1-3 broad tags.", stream=False, max_completion_tokens=1000),
        ),
    ),
}


async def stream(http: httpx.AsyncClient, path: str, body: Body) -> tuple[str, list[tuple[str, str, str]], int, int]:
    """Reads an answer as these clients do: its text, its calls (id, name, arguments put together), the prompt's tokens
    and how many of them were reused."""
    text, calls, usage = "", dict[Any, list[str]](), Body()
    async with http.stream("POST", f"/v1/{path}", json=body) as answer:
        assert answer.status_code == 200, await answer.aread()
        assert "warning" not in answer.headers
        async for line in answer.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = json.loads(line[6:])
            match event.get("type"):
                case None:
                    usage = event.get("usage") or usage
                    for choice in event["choices"]:
                        text += choice["delta"].get("content") or ""
                        for part in choice["delta"].get("tool_calls") or ():
                            call = calls.setdefault(part["index"], ["", "", ""])
                            call[0] = part.get("id") or call[0]
                            call[1] += part["function"].get("name") or ""
                            call[2] += part["function"].get("arguments") or ""
                case "response.output_item.added" if event["item"]["type"] == "function_call":
                    calls[event["output_index"]] = [event["item"]["call_id"], event["item"]["name"], ""]
                case "response.function_call_arguments.delta":
                    calls[event["output_index"]][2] += event["delta"]
                case "response.output_text.delta":
                    text += event["delta"]
                case "response.completed":
                    usage = event["response"]["usage"]
    prompt = usage.get("prompt_tokens") or usage["input_tokens"]
    details = usage.get("prompt_tokens_details") or usage["input_tokens_details"]
    written = usage.get("completion_tokens") or usage["output_tokens"]
    return text, [(each[0], each[1], each[2]) for each in calls.values()], prompt + written, details["cached_tokens"]


@pytest.mark.parametrize("name", CLIENTS)
async def test_a_tool_loop_is_answered_and_what_is_resent_is_not_computed_again(
    server: Serving, http: httpx.AsyncClient, name: str
) -> None:
    client = CLIENTS[name]
    server.engine.script[:] = [CALL, ANSWER]
    _, [(call_id, called, arguments)], whole, _ = await stream(http, client.path, client.opening)
    assert (called, json.loads(arguments)) == ("lights", ARGUMENTS)
    history = [*client.opening[client.history], *client.resent(call_id, arguments)]
    text, calls, _, cached = await stream(http, client.path, {**client.opening, client.history: history})
    assert (text, calls) == (ANSWER, [])
    assert cached >= whole - SPARE_TOKENS, f"{cached} of {whole} tokens were reused"


@pytest.mark.parametrize("name", [name for name, client in CLIENTS.items() if client.asked_besides])
async def test_what_it_asks_besides_is_answered(server: Serving, http: httpx.AsyncClient, name: str) -> None:
    client = CLIENTS[name]
    for body in client.asked_besides:
        if body.get("response_format") == {"type": "json_object"}:  # the engine here has no grammar for any object
            server.engine.script.append('{"on": true}')
        answer = await http.post(f"/v1/{client.path}", json=body)
        assert answer.status_code == 200, answer.text
        assert "warning" not in answer.headers
        if client.path == "responses":
            json.loads(answer.json()["output"][0]["content"][0]["text"])
            continue
        message = answer.json()["choices"][0]["message"]
        if "tools" in body:
            assert set(json.loads(message["tool_calls"][0]["function"]["arguments"])) == {"language", "title"}
        elif "response_format" in body:
            json.loads(message["content"])
        else:
            assert message["content"]
