"""`serve --engine chat` and `--engine remote`: whose model another server has, and what it refuses or breaks off."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from inference.remote.engine import RemoteEngine
from inference.remote.options import RemoteOptions
from testbed.images.made import a_pattern, encoded
from testbed.server_process import ServerProcess
from testbed.wire_client import connected
from tests.support.doors.assembly import assembled
from tests.support.engines.chat_provider import AWAY, BUSY, STREAM, ChatProvider, chat_engine, delta, end
from tests.support.engines.engines import LlamaWorld
from tests.support.engines.relay import Relay
from tests.support.engines.token_servers import STORY, SglangServer, write_folder

QUESTION = "Tell a long story about a river, a bridge and a town."


@pytest.mark.slow
@pytest.mark.model
async def test_an_answer_outlives_its_engine(tmp_path: Path, model_path: Path) -> None:
    world = LlamaWorld(tmp_path / "engine", model_path)
    own: Any = await world.engine()
    async with Relay(own.socket_path) as one, Relay(own.socket_path) as other:
        flags = ("--engine", "remote", "--engine-url", f"{one.url},{other.url}", "--model", str(model_path))
        server = ServerProcess(*flags, data=str(tmp_path / "data"))
        await asyncio.to_thread(server.start)  # the relays run on this loop
        try:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}/v1", timeout=120) as http:
                model = (await http.get("/models")).json()["data"][0]["id"]
                body = {"model": model, "messages": [{"role": "user", "content": QUESTION}], "temperature": 0}
                body["max_tokens"] = 80
                whole = (await http.post("/chat/completions", json=body)).json()["choices"][0]
                text, cut, finish = "", False, None
                async with http.stream("POST", "/chat/completions", json={**body, "stream": True}) as stream:
                    async for line in stream.aiter_lines():
                        if not line.startswith("data: {"):
                            continue
                        chunk = json.loads(line.removeprefix("data: "))
                        choice = chunk["choices"][0]
                        text += choice["delta"].get("content") or ""
                        finish = choice["finish_reason"] or finish
                        if len(text) > 20 and not cut:
                            cut = True
                            (its,) = (each for each in (one, other) if each.streams)
                            await its.cut()
                assert cut and (text, finish) == (whole["message"]["content"], whole["finish_reason"])
        finally:
            await asyncio.to_thread(server.stop)
    await world.close()


ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
WORDS = STREAM + delta(content="Hello you.") + end()


@asynccontextmanager
async def chat_server(*providers: ChatProvider) -> AsyncIterator[httpx.AsyncClient]:
    """Serves the chat model of some providers; yields a client of the server."""
    async with (
        chat_engine(*providers) as engine,
        assembled(engine=engine) as assembly,
        httpx.AsyncClient(base_url=assembly.server.url, timeout=60) as http,
    ):
        yield http


async def chat(*providers: ChatProvider, path: str = "/v1/chat/completions", **more: Any) -> httpx.Response:
    async with chat_server(*providers) as http:
        return await http.post(path, json=ASK | more)


@pytest.mark.parametrize("broken", [b"", b'data: {"error": {"code": 500}}\n\n'])
async def test_what_a_provider_breaks_off_behind_the_first_words_is_the_servers_fault(broken: bytes) -> None:
    """No 400: the client's request was right."""
    said = STREAM + delta(content="Hello") + broken
    answer = await chat(ChatProvider(said))
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["code"]) == (502, "server_error", "answer_cut_short")
    streamed = (await chat(ChatProvider(said), stream=True)).text
    assert "Hello" in streamed and '"answer_cut_short"' in streamed and "[DONE]" not in streamed
    told = await chat(ChatProvider(said), path="/v1/messages", max_tokens=9)
    assert told.json()["error"]["type"] == "api_error"


@pytest.mark.parametrize(("refusal", "code"), [(BUSY, "overloaded"), (AWAY, "engine_unavailable")])
async def test_a_providers_retry_after_reaches_the_client(refusal: bytes, code: str) -> None:
    answer = await chat(ChatProvider(refusal % 7))
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["retry_after_ms"]) == (503, code, 7_000)
    assert answer.headers["retry-after"] == "7"


async def test_a_providers_retry_after_stands_in_the_event_of_a_session() -> None:
    async with (
        chat_engine(ChatProvider(BUSY % 7)) as engine,
        assembled(engine=engine) as assembly,
        connected(assembly.ws) as wire,
    ):
        session = await wire.create()
        begun = await wire.command("message.create", session=session, content="Hello")
        ended = (await wire.until_end(begun["response_id"]))[-1]["event"]["response"]
    assert (ended["error"]["code"], ended["error"]["retry_after_ms"]) == ("overloaded", 7_000)


async def test_a_provider_that_is_busy_is_passed_over_where_there_is_another() -> None:
    busy, free = ChatProvider(BUSY % 7), ChatProvider(WORDS)
    for _ in range(4):  # which address a session begins at is its name's to say
        answer = await chat(busy, free)
        assert answer.json()["choices"][0]["message"]["content"] == "Hello you."
    assert len(free.bodies) == 4


async def test_of_providers_that_are_all_busy_the_soonest_says_when() -> None:
    answer = await chat(ChatProvider(BUSY % 9), ChatProvider(BUSY % 3), ChatProvider(BUSY % 7))
    assert (answer.status_code, answer.json()["error"]["retry_after_ms"]) == (503, 3_000)


LOOK: dict[str, Any] = {"name": "look", "parameters": {"type": "object"}}
TOOLS = [{"type": "function", "function": LOOK}]
LITERAL = 'Hermes writes  <tool_call>\n{"name": "look", "arguments": {"at": 1}}\n</tool_call>  so.'


@pytest.mark.parametrize(
    "text",
    [
        LITERAL,
        '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>',
        '{"name": "look", "arguments": {"at": 1}}',
        '```json\n{"name": "look", "arguments": {"at": 1}}\n```',
    ],
)
async def test_text_of_a_provider_that_looks_like_a_call_is_text(text: str) -> None:
    pieces = b"".join(delta(content=text[at : at + 5]) for at in range(0, len(text), 5))
    (choice,) = (await chat(ChatProvider(STREAM + pieces + end()), tools=TOOLS)).json()["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (text, "stop")
    assert not choice["message"].get("tool_calls")


@pytest.mark.parametrize(
    "arguments", ['{"at": "\ufdd1</tool_call>"}', '{"at":1 }', '{"at": "<b>', '{"at": 1}}', "no JSON"]
)
async def test_calls_are_those_of_the_providers_field_whatever_its_text_looks_like(arguments: str) -> None:
    """Also where its model wrote what is no JSON: the client says so, and the provider gets its own words back."""
    called = [{"index": 0, "id": "a", "function": {"name": "look", "arguments": ""}}]
    rest = [{"index": 0, "function": {"arguments": arguments}}]
    escaped = arguments.replace("\ufdd1", "\\ufdd1")
    first = STREAM + delta(content=LITERAL) + delta(tool_calls=called) + delta(tool_calls=rest) + end("tool_calls")
    provider = ChatProvider(first, WORDS)
    async with chat_server(provider) as http:
        (choice,) = (await http.post("/v1/chat/completions", json=ASK | {"tools": TOOLS})).json()["choices"]
        (call,) = choice["message"]["tool_calls"]
        assert choice["message"]["content"] == LITERAL and choice["finish_reason"] == "tool_calls"
        assert call["function"] == {"name": "look", "arguments": escaped}
        output = {"role": "tool", "tool_call_id": call["id"], "content": "a town"}
        behind = {"messages": [*ASK["messages"], choice["message"], output], "tools": TOOLS}
        await http.post("/v1/chat/completions", json=ASK | behind)
    _, answered, told = provider.bodies[1]["messages"]
    assert answered["content"] == LITERAL and told["content"] == "a town"
    assert answered["tool_calls"][0]["function"]["arguments"] == escaped
    assert told["tool_call_id"] == answered["tool_calls"][0]["id"]


async def test_a_call_that_nobody_offered_is_no_part_of_the_answer() -> None:
    called = [{"index": 0, "id": "a", "function": {"name": "search", "arguments": "{}"}}]
    answer = await chat(ChatProvider(STREAM + delta(tool_calls=called) + delta(content="Found.") + end()))
    (choice,) = answer.json()["choices"]
    assert choice["message"]["content"] == "Found." and not choice["message"].get("tool_calls")


@pytest.mark.parametrize("thought", ["Ends at </think> or <think>.", "\ufdd3Hm", "<|channel|>"])
async def test_thoughts_are_those_of_the_providers_field_whatever_they_look_like(thought: str) -> None:
    """Also behind text, and in the next request the provider gets none of them."""
    parts = [delta(reasoning_content=each) for each in thought] + [delta(content="I say <think>")]
    parts += [delta(reasoning="And more."), delta(content="</think> so."), end()]
    provider = ChatProvider(STREAM + b"".join(parts), WORDS)
    async with chat_server(provider) as http:
        (choice,) = (await http.post("/v1/chat/completions", json=ASK)).json()["choices"]
        told = choice["message"]
        assert told["reasoning_content"].startswith(thought.replace("\ufdd3", "\ufffd"))
        assert told["reasoning_content"].endswith("And more.") and told["content"] == "I say <think></think> so."
        behind = {"messages": [*ASK["messages"], told, {"role": "user", "content": "And?"}]}
        await http.post("/v1/chat/completions", json=ASK | behind)
    _, answered, _ = provider.bodies[1]["messages"]
    assert answered == {"role": "assistant", "content": "I say <think></think> so."}


async def test_a_thought_at_the_beginning_of_a_providers_text_is_a_thought() -> None:
    text = "<think>\nHm, 2 + 2.\n</think>\n\nFour, not </think>."
    pieces = b"".join(delta(content=text[at : at + 5]) for at in range(0, len(text), 5))
    (choice,) = (await chat(ChatProvider(STREAM + pieces + end()))).json()["choices"]
    assert choice["message"]["content"] == "Four, not </think>."
    assert choice["message"]["reasoning_content"] == "Hm, 2 + 2."


async def test_text_on_both_sides_of_a_providers_thought_keeps_its_white_space() -> None:
    parts = [delta(content="Let me check.\n\n"), delta(reasoning="Hm."), delta(content="The answer"), end()]
    provider = ChatProvider(STREAM + b"".join(parts), WORDS)
    async with chat_server(provider) as http:
        (choice,) = (await http.post("/v1/chat/completions", json=ASK)).json()["choices"]
        assert choice["message"]["content"] == "Let me check.\n\nThe answer"
        behind = {"messages": [*ASK["messages"], choice["message"], {"role": "user", "content": "And?"}]}
        await http.post("/v1/chat/completions", json=ASK | behind)
    assert provider.bodies[1]["messages"][1]["content"] == "Let me check.\n\nThe answer"


async def test_what_a_server_reused_is_in_the_usage_though_it_says_so_only_at_the_end() -> None:
    used = b'data: {"choices":[],"usage":{"prompt_tokens":100,"prompt_tokens_details":{"cached_tokens":50}}}\n\n'
    words = STREAM + delta(content="Hello you.") + end().replace(b"data: [DONE]", used + b"data: [DONE]")
    usage = (await chat(ChatProvider(words))).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] // 2 > 0


@pytest.mark.parametrize("incremental", [False, True])
@pytest.mark.parametrize(("cut", "kept"), [(22, 22), (25, 24)])  # of a character that is not whole nothing is kept
async def test_an_answer_outlives_its_server_of_sglang(tmp_path: Path, incremental: bool, cut: int, kept: int) -> None:
    folder = write_folder(tmp_path / "tiny")
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(SglangServer(folder, incremental=incremental)) for _ in range(2)]
        engine = RemoteEngine(RemoteOptions(urls=tuple(server.url for server in servers), tokenizer=folder))
        assembly = await stack.enter_async_context(assembled(engine=engine))
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=assembly.server.url, timeout=60))
        body = ASK | {"model": "small", "temperature": 0}
        whole = (await http.post("/v1/chat/completions", json=body)).json()["choices"][0]
        assert whole["message"]["content"] == STORY
        for server in servers:
            server.cut_after = cut
            server.bodies.clear()
        text = ""
        async with http.stream("POST", "/v1/chat/completions", json=body | {"stream": True}) as stream:
            async for line in stream.aiter_lines():
                if line.startswith("data: {"):
                    text += json.loads(line.removeprefix("data: "))["choices"][0]["delta"].get("content") or ""
        first, second = sorted((server.bodies[0]["input_ids"] for server in servers), key=len)
        assert text == STORY and second == [*first, *servers[0].story[:kept]]


CHAT_ENGINE_QUESTION = {"role": "user", "content": "Tell of a river."}


def in_front_of(provider: ServerProcess, model: str = "simulated") -> ServerProcess:
    url = f"http://127.0.0.1:{provider.port}/v1"
    return ServerProcess("--engine", "chat", "--engine-url", url, "--model", model)


def as_url(size: tuple[int, int]) -> str:
    return f"data:image/png;base64,{base64.b64encode(encoded(a_pattern(size=size))).decode()}"


async def ask(server: ServerProcess, **body: Any) -> dict[str, Any]:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}/v1", timeout=120) as http:
        answer = await http.post("/chat/completions", json={"model": "simulated", "max_tokens": 40, **body})
        return answer.raise_for_status().json()  # type: ignore[no-any-return]


@pytest.mark.slow
async def test_a_conversation_is_the_providers_and_an_answer_that_it_breaks_off_is_incomplete() -> None:
    with ServerProcess("--engine", "sim") as provider, in_front_of(provider) as server:
        messages: list[dict[str, Any]] = [CHAT_ENGINE_QUESTION]
        for _ in range(2):
            answer, its_own = [await ask(each, messages=messages) for each in (server, provider)]
            (choice,) = answer["choices"]
            assert choice["message"]["content"] == its_own["choices"][0]["message"]["content"]
            assert choice["finish_reason"] == its_own["choices"][0]["finish_reason"]
            messages += [choice["message"], {"role": "user", "content": "And then?"}]
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}/v1", timeout=120) as http:
            body = {"model": "simulated", "input": "A long story.", "background": True, "max_output_tokens": 4_000}
            begun = (await http.post("/responses", json=body)).json()
            async with http.stream("GET", f"/responses/{begun['id']}?stream=true") as stream:
                async for line in stream.aiter_lines():
                    if '"response.output_text.delta"' in line and provider.process is not None:
                        await asyncio.to_thread(provider.kill)
            ended = (await http.get(f"/responses/{begun['id']}")).json()
        assert (ended["status"], ended["incomplete_details"]) == ("incomplete", {"reason": "recovery_incompatible"})
        assert ended["output"][0]["content"][0]["text"]


@pytest.mark.slow
async def test_images_go_on_to_a_provider_that_says_that_its_model_sees() -> None:
    with ServerProcess("--engine", "sim", "--images", "yes") as provider, in_front_of(provider) as server:
        answers = []
        for url in (as_url((96, 64)), as_url((64, 96))):
            parts = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": url}}]
            answer, its_own = [
                await ask(each, messages=[{"role": "user", "content": parts}]) for each in (server, provider)
            ]
            said = answer["choices"][0]["message"]["content"]
            assert said == its_own["choices"][0]["message"]["content"], "the provider got the same image"
            answers.append(said)
        assert answers[0] != answers[1]
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}/v1", timeout=120) as http:
            models = (await http.get("/models")).json()["data"]
        assert "image" in next(model for model in models if model["id"] == "simulated")["input_modalities"]


@pytest.mark.slow
async def test_a_model_that_the_provider_does_not_list_is_refused_at_the_start(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with ServerProcess("--engine", "sim") as provider:
        server = in_front_of(provider, "gpt")
        with pytest.raises(RuntimeError):
            await asyncio.to_thread(server.start)
    assert re.search(r"has no model 'gpt'\. It has .*simulated", capfd.readouterr().err)
