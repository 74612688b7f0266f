"""Clients that change a conversation before they resend it, or bring one along: what stands behind the first difference
is computed, whoever's session holds the rest; and nobody gains by another's."""

from __future__ import annotations

import json
import random
from typing import Any

import httpx
import msgspec
import openai
import pytest

from inference.simulated import SimulatedOptions
from sessions.model.events import ItemCreated, OutputItemDone
from sessions.model.types import LOCAL_PRINCIPAL, Principal, TenantId
from tests.support.doors.openai_server import SIMULATED, Serving, serving
from tests.support.rounds.mutated_histories import MUTATIONS, HistoryRounds, sentence
from transport.auth.authenticator import key_digest


@pytest.mark.parametrize("resent", ["", ".", "The first wor", None])
async def test_the_first_answer_stopped_and_resent_as_the_reader_saw_it(
    client: openai.AsyncOpenAI, resent: str | None
) -> None:
    opening: Any = {"role": "user", "content": f"A long question about many things, most of them wet ({resent})."}
    request: Any = {"model": SIMULATED, "max_tokens": 200}
    stream = await client.chat.completions.create(messages=[opening], stream=True, **request)
    session = stream.response.headers["x-session-id"]
    async for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            break
    await stream.close()
    answered: list[Any] = [] if resent is None else [{"role": "assistant", "content": resent}]
    messages: Any = [opening, *answered, {"role": "user", "content": "Go on."}]
    raw = await client.chat.completions.with_raw_response.create(messages=messages, **request)
    usage = raw.parse().usage
    assert raw.headers["x-session-id"] == session and usage is not None
    assert usage.prompt_tokens_details is not None
    assert (usage.prompt_tokens_details.cached_tokens or 0) > 20


BLOCK = 32


@pytest.mark.parametrize("rounds", [2, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mutation", MUTATIONS)
async def test_what_stands_behind_the_first_difference_is_computed_and_a_block_at_most(
    http: httpx.AsyncClient, mutation: str, rounds: int
) -> None:
    player = HistoryRounds(http, SIMULATED, exchanges=3, answer_tokens=12)
    for number in range(rounds):
        rng = random.Random(f"{mutation} {number}")
        done = await player.resend(mutation, rng, await player.begin(rng))
        assert done.is_within(BLOCK) and done.computed < done.prompt_tokens, done


async def test_the_first_question_once_more_and_an_imported_history_lie_in_sessions_of_their_own(
    http: httpx.AsyncClient,
) -> None:
    messages = [{"role": "user", "content": f"A question about {number} rivers and their lakes."} for number in (1, 2)]
    seen = [await _sent(http, each) for each in ([messages[0]], [messages[0]], messages, [messages[0]])]
    assert len({session for session, _, _ in seen}) > 1
    assert all(prompt - cached <= BLOCK for _, prompt, cached in seen[1:])


CALLERS = {
    "mine": LOCAL_PRINCIPAL,
    "another key": msgspec.structs.replace(LOCAL_PRINCIPAL, key_id="other"),
    "another user of the key": msgspec.structs.replace(LOCAL_PRINCIPAL, user="bob"),
    "another tenant": Principal(tenant=TenantId("other"), key_id=LOCAL_PRINCIPAL.key_id),
}


@pytest.mark.parametrize("stored", [False, True])
async def test_no_caller_gains_by_what_another_has_computed(options: SimulatedOptions, stored: bool) -> None:
    history: Any = [{"role": "user", "content": sentence(random.Random(1), 60)}]
    keys = {key_digest(key): caller for key, caller in CALLERS.items()}
    async with serving(options, keys=keys) as made, httpx.AsyncClient(base_url=made.server.url, timeout=60) as http:
        if stored:
            body = {"model": SIMULATED, "input": history[0]["content"], "user": "ann"}
            answer = await http.post("/v1/responses", json=body, headers={"authorization": "Bearer mine"})
            answer.raise_for_status()
        else:
            await _sent(http, history, user="ann", key="mine")
        for key, user in (*((key, "ann") for key in CALLERS if key != "mine"), ("mine", "bob"), ("mine", None)):
            _, _, cached = await _sent(http, history, user=user, key=key)
            assert cached == 0, f"{key}, {user}"
        _, prompt, cached = await _sent(http, history, user="ann", key="mine")
        assert prompt - cached <= BLOCK


async def test_a_history_that_is_resent_to_be_stored_costs_what_is_new(http: httpx.AsyncClient) -> None:
    rng = random.Random(2)
    history: list[Any] = [{"role": "user", "content": sentence(rng, 40)}]
    new = 10_000  # tokens that may be computed: of the first turn all
    for _ in range(4):
        answer = await http.post("/v1/responses", json={"model": SIMULATED, "input": history})
        answer.raise_for_status()
        whole = answer.json()
        usage = whole["usage"]
        assert usage["input_tokens"] - usage["input_tokens_details"]["cached_tokens"] <= new + BLOCK
        history = [*history, *whole["output"], {"role": "user", "content": sentence(rng, 5)}]
        new = len(history[-1]["content"])


async def _sent(
    http: httpx.AsyncClient, messages: Any, *, user: str | None = None, key: str = "none"
) -> tuple[str, int, int]:
    """The session, its prompt's tokens, and how many of them were cached."""
    body = {"model": SIMULATED, "messages": messages, "max_tokens": 8, **({} if user is None else {"user": user})}
    answer = await http.post("/v1/chat/completions", json=body, headers={"authorization": f"Bearer {key}"})
    answer.raise_for_status()
    usage = answer.json()["usage"]
    return answer.headers["x-session-id"], usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


FILES: Any = {
    "type": "function",
    "function": {"name": "write", "parameters": {"type": "object", "properties": {"path": {"type": "string"}}}},
}
WRITTEN: Any = {"path": "a.txt", "mode": 7.0, "text": 'Größe 😀 \u2028 "quoted" \\ and so on. ' * 3}
CALLED = f"<tool_call>\n{json.dumps({'name': 'write', 'arguments': WRITTEN}, indent=2)}\n</tool_call>"


def _as_agents_write_it(arguments: str) -> str:
    """`JSON.stringify(JSON.parse(arguments))`, with the keys in another order."""
    value = json.loads(arguments, parse_float=lambda digits: int(float(digits)))
    return json.dumps(dict(reversed(value.items())), separators=(",", ":"), ensure_ascii=False)


@pytest.mark.parametrize("renamed", [False, True])
@pytest.mark.parametrize("door", ["chat", "responses", "stored responses"])
async def test_an_agent_that_writes_its_calls_anew_computes_what_is_new(
    server: Serving, http: httpx.AsyncClient, door: str, renamed: bool
) -> None:
    """Its calls' arguments are the same values in other words, its ids its own: the answers stay as they were given."""
    server.engine.script += [CALLED, CALLED, CALLED, "Done."]
    history: list[Any] = [{"role": "user", "content": "Write the file, please."}]
    before = 0
    sessions = set()
    for step in range(4):
        if door == "chat":
            body: Any = {"messages": history, "tools": [FILES]}
        else:
            body = {"input": history, "tools": [{"type": "function", **FILES["function"]}]}
            body |= {} if door.startswith("stored") else {"store": False}
        path = "/v1/chat/completions" if door == "chat" else "/v1/responses"
        answer = await http.post(path, json={"model": SIMULATED, **body})
        answer.raise_for_status()
        whole = answer.json()
        sessions.add(answer.headers["x-session-id"])
        if door == "chat":
            usage = whole["usage"]
            prompt, cached = usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]
            output = usage["completion_tokens"]
            calls = whole["choices"][0]["message"].get("tool_calls", [])
        else:
            usage = whole["usage"]
            prompt, cached = usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]
            output = usage["output_tokens"]
            calls = [item for item in whole["output"] if item["type"] == "function_call"]
        assert cached >= before - BLOCK, f"step {step}: {cached} of {before}"
        before = prompt + output
        for call in calls:
            name = f"mine_{step}" if renamed else call.get("call_id", call["id"])
            if door == "chat":
                arguments = _as_agents_write_it(call["function"]["arguments"])
                made = {"id": name, "type": "function", "function": {"name": "write", "arguments": arguments}}
                history += [
                    {"role": "assistant", "content": None, "tool_calls": [made]},
                    {"role": "tool", "tool_call_id": name, "content": "written"},
                ]
            else:
                arguments = _as_agents_write_it(call["arguments"])
                history += [
                    {"type": "function_call", "call_id": name, "name": "write", "arguments": arguments},
                    {"type": "function_call_output", "call_id": name, "output": "written"},
                ]
    assert len(sessions) == 1 and len(calls) == 0
    kept = [record.event for record in server.log(sessions.pop())]
    ids = [event.item.call_id for event in kept if isinstance(event, OutputItemDone) and hasattr(event.item, "call_id")]
    outputs = [
        event.item.call_id for event in kept if isinstance(event, ItemCreated) and hasattr(event.item, "call_id")
    ]
    assert ids == outputs and len(ids) == 3


async def test_a_history_that_is_found_has_the_instructions_and_tools_that_it_says(http: httpx.AsyncClient) -> None:
    """Those of another turn of the same session hold for that turn."""
    other = {"type": "function", "name": "other", "parameters": {"type": "object"}}
    base: dict[str, Any] = {"model": SIMULATED, "instructions": "Be brief.", "tools": [other]}

    async def sent(**more: Any) -> tuple[Any, str]:
        answer = await http.post("/v1/responses", json={**base, **more})
        answer.raise_for_status()
        return answer.json(), answer.headers["x-session-id"]

    first, session = await sent(input="hello")
    _, same = await sent(input="and", previous_response_id=first["id"], instructions="Be long.", tools=[])
    history = [{"role": "user", "content": "hello"}, *first["output"], {"role": "user", "content": "more"}]
    _, again = await sent(input=history)
    assert session == same == again
    info = (await http.get(f"/v1/sessions/{session}")).json()
    assert info["instructions"] == "Be brief." and [tool["name"] for tool in info["tools"]] == ["other"]
