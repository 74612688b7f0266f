"""Attacks on the input policy: the forbidden phrase where nobody looks for it. Each passed once (docs/security.md)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from inference.simulated import SimulatedOptions
from sessions.turn.keyword_filter import KeywordFilterSet
from tests.support.doors.assembly import assembled

PHRASE = "project nightjar"


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with (
        assembled(engine=SimulatedOptions(tools=True), filters=KeywordFilterSet(input_phrases=(PHRASE,))) as assembly,
        httpx.AsyncClient(base_url=assembly.server.url, timeout=60) as client,
    ):
        yield client


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def tool(**function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "look", **function}}


def call(**function: str) -> dict[str, Any]:
    made = {"name": "look", "arguments": "{}", **function}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": made}]}


def output(text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": "c", "content": text}


PLACES: dict[str, dict[str, Any]] = {
    "an answer in the history": {"messages": [user("hi"), {"role": "assistant", "content": PHRASE}, user("go on")]},
    "a call's arguments": {"messages": [user("hi"), call(arguments=f'{{"about": "{PHRASE}"}}'), output("done")]},
    "a call's name": {"messages": [user("hi"), call(name=PHRASE), output("done")]},
    "a tool's output": {"messages": [user("hi"), call(), output(PHRASE)]},
    "the instructions": {"messages": [{"role": "system", "content": PHRASE}, user("hi")]},
    "a function's description": {"messages": [user("hi")], "tools": [tool(description=PHRASE)]},
    "a schema's description": {
        "messages": [user("hi")],
        "tools": [tool(parameters={"type": "object", "properties": {"at": {"description": PHRASE}}})],
    },
    "a schema's names": {
        "messages": [user("hi")],
        "tools": [tool(parameters={"type": "object", "properties": {PHRASE: {"type": "string"}}})],
    },
    "a schema's values": {
        "messages": [user("hi")],
        "tools": [tool(parameters={"type": "object", "properties": {"at": {"enum": ["x", PHRASE]}}})],
    },
    "two messages": {"messages": [user("project"), user("nightjar")]},
    "two messages, inside a word": {"messages": [user("project night"), user("jar")]},
    "three messages": {"messages": [user("pro"), user("ject nigh"), user("tjar")]},
    "two parts": {"messages": [user([{"type": "text", "text": each} for each in ("project n", "ightjar")])]},  # type: ignore[arg-type]
    "both sides of an answer": {
        "messages": [user("project"), {"role": "assistant", "content": "Yes?"}, user("nightjar")]
    },
    "a question and its answer": {
        "messages": [user("project"), {"role": "assistant", "content": "nightjar"}, user("?")]
    },
    "the instructions and a message": {"messages": [{"role": "system", "content": "project"}, user("nightjar")]},
}


@pytest.mark.parametrize("place", PLACES)
async def test_a_phrase_is_seen_wherever_the_model_reads_it(http: httpx.AsyncClient, place: str) -> None:
    answer = await http.post("/v1/chat/completions", json={"model": "simulated", **PLACES[place]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "content_filter")


async def test_a_phrase_split_over_requests_is_seen(http: httpx.AsyncClient) -> None:
    conversation = (await http.post("/v1/conversations", json={})).json()["id"]
    for words, status in (("project", 200), ("nightjar", 400), ("what a fine day", 200)):
        request = {"model": "simulated", "input": words, "conversation": conversation}
        assert (await http.post("/v1/responses", json=request)).status_code == status


@pytest.mark.parametrize("role", ["user", "assistant", "developer"])
async def test_items_of_conversations_are_filtered(http: httpx.AsyncClient, role: str) -> None:
    items = {"items": [{"role": role, "content": f"all about {PHRASE}"}]}
    assert (await http.post("/v1/conversations", json=items)).status_code == 400
    conversation = (await http.post("/v1/conversations", json={})).json()["id"]
    assert (await http.post(f"/v1/conversations/{conversation}/items", json=items)).status_code == 400


async def test_the_schema_of_an_answer_is_filtered(http: httpx.AsyncClient) -> None:
    form = {"type": "json_schema", "name": "x", "schema": {"type": "object", "properties": {"at": {"const": PHRASE}}}}
    request = {"model": "simulated", "input": "hi", "text": {"format": form}}
    answer = await http.post("/v1/responses", json=request)
    assert answer.status_code == 400
