"""Chat completions and bare prompts by OpenAI's own SDK: whole, streamed, with tools, and how they end."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import httpx
import openai
import pytest
from msgspec.structs import replace

from inference.simulated import SimulatedOptions, decode
from inference.simulated.vocabulary import BEGIN
from sessions.model import commands as cm
from sessions.model.events import ItemCreated, ResponseCreated
from sessions.model.generation import EngineInfo, TokenScore
from sessions.model.types import INTEGER_MAX, LOCAL_PRINCIPAL, CommandId, SessionId, Tokens
from tests.support.doors.openai_server import SIMULATED, WEATHER, WEATHER_CALL, ScriptedEngine, Serving, serving
from transport.history_index import GIVEN_MAX

HELLO: list[Any] = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "say something"}]


async def answer(client: openai.AsyncOpenAI, messages: list[Any], **more: Any) -> str:
    """One turn of a client that keeps the conversation; the answer is added to it."""
    completion = await client.chat.completions.create(model=SIMULATED, messages=messages, **more)
    message = completion.choices[0].message
    messages.append(message.model_dump(exclude_none=True))
    assert message.content is not None
    return str(message.content)


async def test_a_plain_stream_has_data_lines_and_done_only(http: httpx.AsyncClient) -> None:
    body = {"model": SIMULATED, "messages": HELLO, "stream": True}
    plain = await http.post("/v1/chat/completions", json=body)
    assert plain.headers["content-type"].startswith("text/event-stream")
    assert plain.headers["x-request-id"]
    lines = [line for line in plain.text.split("\n") if line]
    assert all(line.startswith("data: ") for line in lines) and lines[-1] == "data: [DONE]"
    with_ids = await http.post("/v1/chat/completions", json=body, headers={"x-sessile-event-ids": "1"})
    assert any(line.startswith("id: ") for line in with_ids.text.split("\n"))


async def test_several_choices_share_their_question(client: openai.AsyncOpenAI, server: Serving) -> None:
    completion = await client.chat.completions.create(model=SIMULATED, messages=HELLO, n=3, temperature=1, seed=7)
    assert [choice.index for choice in completion.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in completion.choices}) == 3
    (session,) = server.sessions
    events = [record.event for record in server.log(session)]
    assert sum(isinstance(event, ItemCreated) for event in events) == 1
    stream = await client.chat.completions.create(
        model=SIMULATED, messages=HELLO, n=3, temperature=1, seed=7, stream=True
    )
    texts = ["", "", ""]
    async for chunk in stream:
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts == [choice.message.content for choice in completion.choices]


async def test_limits_and_stops_end_an_answer_as_they_should(client: openai.AsyncOpenAI, server: Serving) -> None:
    short = await client.chat.completions.create(model=SIMULATED, messages=HELLO, max_completion_tokens=3)
    assert short.choices[0].finish_reason == "length"
    assert short.usage is not None and short.usage.completion_tokens == 3
    server.engine.script.append("one two END three")
    stopped = await client.chat.completions.create(model=SIMULATED, messages=HELLO, stop=["END"])
    assert stopped.choices[0].message.content == "one two " and stopped.choices[0].finish_reason == "stop"


async def test_a_changed_history_branches_off_within_its_session(client: openai.AsyncOpenAI, server: Serving) -> None:
    messages = list(HELLO)
    await answer(client, messages)
    mine = [*messages, {"role": "user", "content": "go on"}]
    await answer(client, first := list(mine))
    second = [*mine[:-1], {"role": "user", "content": "go on otherwise"}]
    await asyncio.gather(answer(client, second), *(answer(client, list(mine)) for _ in range(3)))
    (session,) = server.sessions
    for told in (first, second):  # each of them goes on from its own words
        told.append({"role": "user", "content": "and then"})
        await answer(client, list(told))
        assert decode(server.engine.prompts[-1]) == "".join(message["content"] for message in told)
    assert server.sessions == [session]


async def test_so_many_branch_off_from_one_place_and_then_in_a_session_of_their_own(
    client: openai.AsyncOpenAI, server: Serving
) -> None:
    messages = list(HELLO)
    await answer(client, messages)
    places = 2 * GIVEN_MAX  # of the answer, then of what it answers
    for number in range(places + 1):
        await answer(client, [*messages, {"role": "user", "content": f"question {number}"}])
        assert len(server.sessions) == 1 + (number == places)


@pytest.mark.parametrize("headers", [{}, {"Idempotency-Key": "once"}])
async def test_a_session_that_is_full_is_gone_on_from_in_a_new_one(
    client: openai.AsyncOpenAI, server: Serving, monkeypatch: pytest.MonkeyPatch, headers: dict[str, str]
) -> None:
    messages = list(HELLO)
    await answer(client, messages)
    messages.append({"role": "user", "content": "go on"})
    monkeypatch.setattr("sessions.machine.machine.ITEMS_MAX", 2)
    await answer(client, messages, extra_headers=headers)
    messages.append({"role": "user", "content": "and on"})
    monkeypatch.setattr("sessions.machine.machine.ITEMS_MAX", 30)
    full, *_ = server.sessions
    items = sum(isinstance(record.event, ItemCreated) for record in server.log(full))
    await answer(client, messages)
    assert sum(isinstance(record.event, ItemCreated) for record in server.log(full)) == items
    assert decode(server.engine.prompts[-1]) == "".join(message["content"] for message in messages[:-1])


TYPELESS: Any = {"type": "function", "function": {"name": "f", "parameters": {"type": "nope"}}}
BAD: list[tuple[dict[str, Any], int, str, str]] = [
    ({"model": "other"}, 404, "model_not_found", "model"),
    ({"messages": []}, 400, "invalid_request", "messages"),
    ({"messages": None}, 400, "invalid_request", "messages"),
    ({"messages": [{"role": "king", "content": "x"}]}, 400, "invalid_request", "messages[0].role"),
    ({"messages": [{"role": "user"}]}, 400, "invalid_request", "messages[0].content"),
    ({"nonsense": 1}, 400, "unknown_parameter", "nonsense"),
    ({"tools": [TYPELESS]}, 400, "invalid_request", "tools[0].function.parameters"),
    ({"tool_choice": "required"}, 400, "invalid_request", "tool_choice"),
    ({"stream_options": {"include_usage": True}}, 400, "invalid_request", "stream_options"),
]


async def test_bad_input_is_told_as_openai_does(http: httpx.AsyncClient) -> None:
    for change, status, code, param in BAD:
        answer = await http.post("/v1/chat/completions", json={"model": SIMULATED, "messages": HELLO, **change})
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (status, code, param)
        assert error["type"] == "invalid_request_error" and error["message"]


CONTINUED: list[dict[str, Any]] = [{"continue_final_message": True, "add_generation_prompt": False}, {}]


@pytest.mark.parametrize("more", CONTINUED)
async def test_an_answer_goes_on_with_the_words_of_the_last_message(
    client: openai.AsyncOpenAI, server: Serving, more: dict[str, Any]
) -> None:
    begun: Any = {"role": "assistant", "content": "The answer is"} | ({} if more else {"prefix": True})
    server.engine.script.append(" four.")
    messages: Any = [{"role": "user", "content": "2 + 2?"}, begun]
    done = await client.chat.completions.create(model=SIMULATED, messages=messages, extra_body=more)
    assert done.choices[0].message.content == " four."
    tokenizer = server.engine.tokenizer
    said = await tokenizer.text("The answer is")
    assert list(server.engine.prompts[-1])[-len(said) - len(tokenizer.answer_opening) :] == [
        *tokenizer.answer_opening,
        *said,
    ]


async def test_what_cannot_be_gone_on_with_is_refused(client: openai.AsyncOpenAI) -> None:
    mine, its = {"role": "user", "content": "x"}, {"role": "assistant", "content": "x"}
    cases: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        (mine, CONTINUED[0], "messages[1].role"),
        ({**mine, "prefix": True}, {}, "messages[1].role"),
        (its, {"continue_final_message": True}, "add_generation_prompt"),
        (its, {"add_generation_prompt": False}, "add_generation_prompt"),
    ]
    for last, more, param in cases:
        messages: Any = [{"role": "user", "content": "2 + 2?"}, last]
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(model=SIMULATED, messages=messages, extra_body=more)
        assert caught.value.param == param


async def completed(client: openai.AsyncOpenAI, prompt: Any = "Once upon a time", **more: Any) -> Any:
    return await client.completions.create(model=SIMULATED, prompt=prompt, **more)


async def texts_of(done: Any, stream: bool) -> dict[int, str]:
    """The texts of an answer by their choices, whole or streamed."""
    texts: dict[int, str] = {}
    for each in [chunk async for chunk in done] if stream else [done]:
        for choice in each.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
    return texts


async def test_the_model_reads_the_prompt_and_nothing_else(client: openai.AsyncOpenAI, server: Serving) -> None:
    done = await completed(client, max_tokens=5)
    assert server.engine.prompts[-1][0] == BEGIN and decode(server.engine.prompts[-1][1:]) == "Once upon a time"
    assert done.object == "text_completion" and done.id.startswith("cmpl-") and done.choices[0].text
    assert done.usage.completion_tokens <= 5 and done.usage.prompt_tokens == len(server.engine.prompts[-1])
    assert (await completed(client)).usage.completion_tokens <= 16  # as OpenAI has it


async def test_a_stream_says_what_the_whole_says(client: openai.AsyncOpenAI) -> None:
    whole = await completed(client, max_tokens=8, temperature=0)
    stream = await completed(client, max_tokens=8, temperature=0, stream=True, stream_options={"include_usage": True})
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == whole.choices[0].text
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == whole.choices[0].finish_reason
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


@pytest.mark.parametrize("stream", [False, True])
async def test_several_prompts_and_choices_have_their_places(client: openai.AsyncOpenAI, stream: bool) -> None:
    prompts = ["a river", "a hill"]
    done = await completed(client, prompts, n=2, max_tokens=4, echo=True, stream=stream)
    texts = await texts_of(done, stream)
    assert sorted(texts) == [0, 1, 2, 3]
    assert [texts[index].startswith(prompts[index // 2]) for index in range(4)] == [True] * 4
    if not stream:
        assert done.usage.total_tokens == done.usage.prompt_tokens + done.usage.completion_tokens


async def test_every_choice_goes_on_with_the_bare_prompt(client: openai.AsyncOpenAI, server: Serving) -> None:
    done = await completed(client, n=3, max_tokens=4, seed=7)
    assert len(done.choices) == 3
    first, *others = (list(prompt) for prompt in server.engine.prompts[-3:])
    assert first[0] == BEGIN and decode(first[1:]) == "Once upon a time" and others == [first, first]


async def test_what_is_not_served_is_refused(client: openai.AsyncOpenAI) -> None:
    refused: list[dict[str, Any]] = [
        {"best_of": 3},
        {"suffix": "end"},
        {"echo": True, "logprobs": 1},  # the simulated engine cannot
        {"stream_options": {}},
    ]
    for more in refused:
        with pytest.raises(openai.BadRequestError):
            await completed(client, **more)
    prompts: list[Any] = [[], [[]], ["x"] * 65, [1, "x"], [10_000], [-1], None]
    for prompt in prompts:
        with pytest.raises(openai.BadRequestError) as caught:
            await completed(client, prompt)
        if prompt == []:  # it was told to be a string
            assert caught.value.param == "prompt" and "at least 1 item" in caught.value.message


async def test_a_key_gives_the_same_again(client: openai.AsyncOpenAI) -> None:
    more: Any = {"extra_headers": {"Idempotency-Key": "once"}, "temperature": 1}
    assert await completed(client, ["a", "b"], **more) == await completed(client, ["a", "b"], **more)


@pytest.mark.parametrize("stream", [False, True])
async def test_token_ids_are_the_prompt_as_they_are(client: openai.AsyncOpenAI, server: Serving, stream: bool) -> None:
    river = [BEGIN, 104, 105]
    for prompt, expected in (([104, 105], [[104, 105]]), ([river, [106]], [river, [106]])):
        done = await completed(client, prompt, max_tokens=4, echo=True, stream=stream)
        assert sorted(map(list, server.engine.prompts[-len(expected) :])) == sorted(expected)
        texts = await texts_of(done, stream)
        assert [texts[index].startswith(decode(tokens)) for index, tokens in enumerate(expected)] == [True] * len(texts)


@pytest.mark.parametrize("stream", [False, True])
async def test_no_token_is_wanted_and_none_is_written(
    client: openai.AsyncOpenAI, server: Serving, stream: bool
) -> None:
    for prompt in ("Once upon", [104, 105]):
        done = await completed(client, prompt, max_tokens=0, echo=True, stream=stream)
        chunks = [chunk async for chunk in done] if stream else [done]
        text = "".join(choice.text for each in chunks for choice in each.choices)
        assert text == (prompt if isinstance(prompt, str) else "hi")
        assert chunks[0].choices[0].finish_reason == "length"
        if not stream:
            assert done.usage.completion_tokens == 0 and done.usage.prompt_tokens >= 2
    assert not server.engine.prompts


class ScoringEngine(ScriptedEngine):
    """Scores prompts: the first ones at once, then never."""

    def __init__(self, at_once: int) -> None:
        super().__init__(SimulatedOptions())
        self.at_once = at_once
        self.waits, self.left = asyncio.Event(), asyncio.Event()
        self.scored: list[Tokens] = []

    @property
    def info(self) -> EngineInfo:
        return replace(super().info, sampling=super().info.sampling | {"logprobs", "top_logprobs"})

    async def score(self, prompt: Tokens, top: int) -> list[TokenScore]:
        self.scored.append(prompt)
        if len(self.scored) > self.at_once:
            self.waits.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.left.set()
        return [TokenScore(-1.0, tuple((token, -1.0) for token in range(97, 97 + top)))] * len(prompt)


async def test_prompts_are_scored_for_nobody_who_has_left() -> None:
    engine = ScoringEngine(at_once=1)
    async with serving(SimulatedOptions(), engine=engine) as server, server.client() as client:
        asked = asyncio.create_task(completed(client, ["a", "b", "c"], max_tokens=0, echo=True, logprobs=1))
        async with asyncio.timeout(60):
            await engine.waits.wait()
            asked.cancel()
            await engine.left.wait()
    assert len(engine.scored) == 2


async def test_no_answer_shows_more_log_probabilities_than_memory_is_for() -> None:
    engine = ScoringEngine(at_once=1000)
    async with serving(SimulatedOptions(), engine=engine) as server, server.client() as client:
        more: Any = {"max_tokens": 0, "echo": True, "logprobs": 20, "n": 16}
        with pytest.raises(openai.BadRequestError, match="at most 500000 log probabilities") as refused:
            await completed(client, [[104] * 800] * 2, **more)
        assert refused.value.param == "logprobs" and not engine.scored
        with pytest.raises(openai.BadRequestError, match="at most 500000 log probabilities"):
            await completed(client, ["h" * 800] * 8, **more)
        assert len(engine.scored) == 2
        assert len((await completed(client, [[104] * 800], **more)).choices) == 16


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


CALL = f"Let me see. {WEATHER_CALL}"
BARE = '{"name": "weather", "arguments": {"city": "Rome"}}'
ASK: list[Any] = [{"role": "user", "content": "how is the weather"}]


async def test_a_call_and_its_output_stay_in_one_session(client: openai.AsyncOpenAI, server: Serving) -> None:
    server.engine.script += [CALL, "Sunny."]
    messages = list(ASK)
    first = await client.chat.completions.create(model=SIMULATED, messages=messages, tools=[WEATHER])
    (choice,) = first.choices
    assert choice.finish_reason == "tool_calls" and choice.message.content == "Let me see."
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert call.type == "function" and (call.function.name, call.function.arguments) == ("weather", '{"city": "Rome"}')
    messages.append(choice.message.model_dump(exclude_none=True))
    messages.append({"role": "tool", "tool_call_id": call.id, "content": "18 degrees"})
    second = await client.chat.completions.create(model=SIMULATED, messages=messages, tools=[WEATHER])
    assert second.choices[0].message.content == "Sunny." and len(server.sessions) == 1
    assert second.usage is not None and second.usage.prompt_tokens_details is not None
    assert second.usage.prompt_tokens_details.cached_tokens
    messages[-1] = {**messages[-1], "tool_call_id": "call_other"}
    with pytest.raises(openai.BadRequestError):
        await client.chat.completions.create(model=SIMULATED, messages=messages, tools=[WEATHER])
    with pytest.raises(openai.BadRequestError, match="did not have response messages"):
        await client.chat.completions.create(model=SIMULATED, messages=messages[:-1], tools=[WEATHER])


async def test_a_history_with_calls_of_somebody_else_is_taken(client: openai.AsyncOpenAI, server: Serving) -> None:
    call = {"id": "call_x", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    messages: list[Any] = [
        *ASK,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_x", "content": "rain"},
    ]
    server.engine.script.append("It rains.")
    done = await client.chat.completions.create(model=SIMULATED, messages=messages, tools=[WEATHER])
    assert done.choices[0].message.content == "It rains."


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
async def test_a_call_that_must_be_made(client: openai.AsyncOpenAI, server: Serving, choice: Any) -> None:
    server.engine.script.append(BARE)
    done = await client.chat.completions.create(model=SIMULATED, messages=ASK, tools=[WEATHER], tool_choice=choice)
    message = done.choices[0].message
    assert message.content is None and message.tool_calls is not None and len(message.tool_calls) == 1
    (asked,) = server.engine.asked
    assert asked.text is not None and asked.text.format is not None and asked.text.format["type"] == "json_schema"


async def test_no_call_where_none_is_wanted(client: openai.AsyncOpenAI, server: Serving) -> None:
    server.engine.script.append(CALL)
    done = await client.chat.completions.create(model=SIMULATED, messages=ASK, tools=[WEATHER], tool_choice="none")
    assert done.choices[0].message.content == CALL and done.choices[0].message.tool_calls is None


UNFIT = {
    "another type": ("weather", '{"city": 7}'),
    "left out": ("weather", "{}"),
    "a function that there is not": ("climate", '{"city": "Rome"}'),
    "no JSON": ("weather", '{"city": }'),
}


@pytest.mark.parametrize(("case", "stream"), [*((case, False) for case in UNFIT), ("another type", True)])
async def test_a_call_that_does_not_fit_is_its_clients_to_judge(
    client: openai.AsyncOpenAI, server: Serving, case: str, stream: bool
) -> None:
    """Over chat completions and responses: the agent answers with an error, and the model does better."""
    name, arguments = UNFIT[case]
    said = f'Let me see. <tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
    server.engine.script += [said, CALL, said, "Sorry."]
    messages: list[Any] = list(ASK)
    first: Any
    if stream:
        async with client.chat.completions.stream(model=SIMULATED, messages=messages, tools=[WEATHER]) as events:
            first = await events.get_final_completion()
    else:
        first = await client.chat.completions.create(model=SIMULATED, messages=messages, tools=[WEATHER])
    (choice,) = first.choices
    assert choice.finish_reason == "tool_calls" and choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert call.type == "function" and (call.function.name, call.function.arguments) == (name, arguments)
    assert choice.message.content == "Let me see."
    messages += [
        {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [{"id": call.id, "type": "function", "function": {"name": name, "arguments": arguments}}],
        },
        {"role": "tool", "tool_call_id": call.id, "content": "That did not work."},
    ]
    second = await client.chat.completions.create(model=SIMULATED, messages=messages, tools=[WEATHER])
    assert second.choices[0].finish_reason == "tool_calls" and len(server.sessions) == 1

    function: Any = {"type": "function", **WEATHER["function"], "strict": False}
    begun = await client.responses.create(model=SIMULATED, input="how is it", tools=[function])
    assert begun.status == "completed"
    made = begun.output[-1]
    assert made.type == "function_call" and (made.name, made.arguments) == (name, arguments)
    output: Any = {"type": "function_call_output", "call_id": made.call_id, "output": "That did not work."}
    ended = await client.responses.create(
        model=SIMULATED, input=[output], previous_response_id=begun.id, tools=[function]
    )
    assert ended.output_text == "Sorry."


STRICT: Any = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_strict_function_gets_arguments_that_fit_though_the_model_chose_freely(
    client: openai.AsyncOpenAI, server: Serving, stream: bool
) -> None:
    server.engine.script.append(CALL.replace('"Rome"', "7"))
    if stream:
        async with client.chat.completions.stream(model=SIMULATED, messages=ASK, tools=[STRICT]) as events:
            done: Any = await events.get_final_completion()
    else:
        done = await client.chat.completions.create(model=SIMULATED, messages=ASK, tools=[STRICT])
    (choice,) = done.choices
    assert (choice.message.content, choice.finish_reason) == ("Let me see.", "tool_calls")
    (call,) = choice.message.tool_calls
    assert call.function.name == "weather" and json.loads(call.function.arguments) == {"city": "x"}
    free, held = server.engine.asked
    assert free.text is None and held.text is not None and held.text.format is not None
    assert held.text.format["schema"]["properties"]["arguments"] == STRICT["function"]["parameters"]


async def test_an_engine_that_keeps_to_no_format_fails_the_call_of_a_strict_function(
    client: openai.AsyncOpenAI, server: Serving
) -> None:
    server.engine.script += [CALL.replace('"Rome"', "7"), '{"name": "weather", "arguments": {"city": 7}}']
    with pytest.raises(openai.InternalServerError) as caught:
        await client.chat.completions.create(model=SIMULATED, messages=ASK, tools=[STRICT])
    assert caught.value.code == "tool_call_invalid"
    assert len(server.engine.asked) == 2


async def test_structured_output_reaches_the_engine(client: openai.AsyncOpenAI, server: Serving) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    server.engine.script.append('{"a": 1}')
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "thing", "schema": schema, "strict": True}}
    done = await client.chat.completions.create(model=SIMULATED, messages=ASK, response_format=wanted)
    assert done.choices[0].message.content == '{"a": 1}'
    (asked,) = server.engine.asked
    assert asked.text is not None and asked.text.format is not None and asked.text.format["schema"] == schema


SAID: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": SIMULATED, "messages": ASK},
    "/v1/responses": {"model": SIMULATED, "input": "how is the weather"},
}


@pytest.mark.parametrize("path", SAID)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_agents_functions_work_beside_tools_that_nobody_here_carries_out(
    server: Serving, http: httpx.AsyncClient, path: str, stream: bool
) -> None:
    server.engine.script.append(CALL)
    function = WEATHER if "chat" in path else {"type": "function", **WEATHER["function"]}
    inner = {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "inner"}]}
    tools = [{"type": "custom", "name": "patch"}, function, {"type": "web_search"}, {"type": "web_search"}, inner]
    answer = await http.post(path, json={**SAID[path], "tools": tools, "stream": stream})
    pieces = re.findall(r'"arguments": ?"((?:[^"\\]|\\.)*)"', answer.text)  # a stream has several
    assert answer.status_code == 200 and "Rome" in "".join(pieces)
    told = "tools[0] (custom), tools[2] (web_search), tools[4] (namespace)"
    assert answer.headers["warning"] == f'299 - "Parameters were ignored: {told}"'
    broken = [{"type": "custom", "name": "patch"}, {"type": "function", "function": {}}]
    refused = (await http.post(path, json={**SAID[path], "tools": broken})).json()["error"]
    name = "tools[1].function.name" if "chat" in path else "tools[1].name"
    assert (refused["code"], refused["param"]) == ("missing_required_parameter", name)
    for choice in ({"type": "web_search"}, {"type": "custom", "name": "patch"}):
        chosen = {**SAID[path], "tools": tools, "tool_choice": choice}
        refused = (await http.post(path, json=chosen)).json()["error"]
        assert (refused["code"], refused["param"]) == ("unsupported_parameter", "tool_choice")
        assert choice["type"] in refused["message"]


@pytest.mark.parametrize("path", SAID)
async def test_no_end_of_a_line_of_unicodes_stands_raw_in_a_stream(
    server: Serving, http: httpx.AsyncClient, path: str
) -> None:
    said = "one\u2028two\u2029three\u0085four"
    server.engine.script.append(said)
    answer = await http.post(path, json={**SAID[path], "stream": True})
    lines = answer.text.splitlines()
    assert all(line.startswith(("data: ", "event: ")) for line in lines if line)
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    if "chat" in path:
        assert "".join(each["choices"][0]["delta"].get("content") or "" for each in events) == said
    else:
        assert "".join(each["delta"] for each in events if each["type"] == "response.output_text.delta") == said


async def test_a_seed_of_64_bits_reaches_the_engine_and_others_do_not_meet(
    server: Serving, http: httpx.AsyncClient
) -> None:
    seeds = [7, 2**31 + 7, 2**64 - 1, -(2**63), -1, -1]
    for path in SAID:
        server.engine.asked.clear()
        for seed in seeds:
            answer = await http.post(path, json={**SAID[path], "seed": seed, "top_p": 0})
            assert answer.status_code == 200, answer.text
        drawn = [asked.seed for asked in server.engine.asked]
        assert len(set(drawn)) == len(seeds) and drawn[:2] == seeds[:2]
        assert all(seed is not None and 0 <= seed <= INTEGER_MAX for seed in drawn)
        assert all(asked.temperature == 0 for asked in server.engine.asked)
    too_large = await http.post(path, json={**SAID[path], "seed": 2**64})
    assert too_large.status_code == 400


async def test_a_schema_that_no_grammar_takes_is_refused_only_where_one_is_made(http: httpx.AsyncClient) -> None:
    """Claude Code offers a function with a `maxLength` of half a million to whoever answers."""
    schema = {"type": "object", "properties": {"script": {"type": "string", "maxLength": 524_288}}}
    function = {"name": "run", "parameters": schema}
    doors: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "/v1/chat/completions": ({"messages": ASK}, {"type": "function", "function": function}),
        "/v1/responses": ({"input": "hi", "store": False}, {"type": "function", **function}),
        "/v1/messages": ({"messages": ASK, "max_tokens": 50}, {"name": "run", "input_schema": schema}),
    }
    for path, (body, tool) in doors.items():
        request = {"model": SIMULATED, **body, "tools": [tool]}
        assert (await http.post(path, json=request)).status_code == 200, path
        forced = {"type": "any"} if path == "/v1/messages" else "required"
        refused = await http.post(path, json={**request, "tool_choice": forced})
        assert refused.status_code == 400 and "maxLength may be 100000 at most" in refused.text, path
