"""Parameters of llama.cpp's and vLLM's clients: honoured, refused, or left out with a Warning; tools never silently."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, get_type_hints

import grpc
import grpc.aio
import httpx
import msgspec
import openai
import pytest
from google.protobuf.json_format import ParseDict
from openai.types import CompletionUsage, FileListParams, VectorStoreListParams
from openai.types.conversations import ItemListParams, ItemRetrieveParams
from openai.types.responses import InputItemListParams
from openai.types.responses.response_retrieve_params import ResponseRetrieveParamsNonStreaming
from openai.types.vector_stores import FileBatchListFilesParams
from openai.types.vector_stores import FileListParams as StoreFileListParams

from deploy.openai_page import document, queries
from inference.simulated import SimulatedEngine, SimulatedOptions
from testbed.wire_client import connected, new_ulid
from tests.support.doors.assembly import Assembly, assembled
from tests.support.doors.grpc_door import error_of
from tests.support.doors.grpc_door import opened as opened_grpc
from tests.support.doors.openai_server import SIMULATED, Serving
from tests.support.engines.sampling_fields import each_field
from transport.grpc_api import sessile_pb2 as pb

SAID = [{"role": "user", "content": "hello"}]
ITEMS = "/v1/conversations/{conversation}/items"
ENGINE = SimulatedOptions(step_base_s=0.0005, answer_tokens_mean=4, tools=False)
FUNCTION = {"name": "f", "parameters": {"type": "object"}}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": SIMULATED, "messages": SAID},
    "/v1/responses": {"model": SIMULATED, "input": "hello"},
}
doors = pytest.mark.parametrize("path", BODIES)


@asynccontextmanager
async def opened(*, ignores: bool) -> AsyncIterator[tuple[Assembly, httpx.AsyncClient]]:
    async with (
        assembled(engine=ENGINE) as assembly,
        httpx.AsyncClient(base_url=assembly.server.url, timeout=60) as http,
    ):
        assembly.gateway.ignores_unknown = ignores
        yield assembly, http


@doors
async def test_what_the_engine_has_not_is_refused_by_its_name(path: str) -> None:
    async with opened(ignores=False) as (_, http):
        for more, code, param in (
            ({"min_p": 0.1}, "unsupported_parameter", "min_p"),
            ({"repetition_penalty": 1.1}, "unsupported_parameter", "repeat_penalty"),
            ({"stop_token_ids": [1]}, "unsupported_parameter", "stop_token_ids"),
            ({"mirostat": 2}, "unknown_parameter", "mirostat"),
            ({"stream": True, "stream_options": {"made_up": True}}, "unknown_parameter", None),
            ({"repeat_penalty": 1.1, "repetition_penalty": 1.2}, "invalid_request", "repetition_penalty"),
        ):
            answer = await http.post(path, json=BODIES[path] | more)
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (400, code) and param in (None, error["param"])


OWN: dict[str, Any] = {
    "client_metadata": {"x-codex-installation-id": "1", "turn": 2},
    "prompt_cache_key": "conversation",
    "prompt_cache_retention": "24h",
    "safety_identifier": "somebody",
    "x_request_tag": ["a"],
}
NOTHING: dict[str, Any] = {
    **dict.fromkeys(("audio", "client_metadata", "function_call", "functions", "metadata", "moderation", "n")),
    **dict.fromkeys(("prediction", "prompt", "seed", "stop", "stream", "stream_options", "tool_choice", "tools")),
    **dict.fromkeys(("top_p", "web_search_options")),
}


@doors
async def test_what_a_client_notes_for_itself_is_taken_and_null_is_as_if_absent(path: str) -> None:
    async with opened(ignores=False) as (_, http):
        for more in (OWN, NOTHING):
            answer = await http.post(path, json=BODIES[path] | more)
            assert answer.status_code == 200, answer.text
            assert "warning" not in answer.headers
        wrong = await http.post(path, json=BODIES[path] | {"audio": {"voice": "alloy"}})
        assert wrong.json()["error"]["code"] == "unknown_parameter"


@doors
@pytest.mark.parametrize("stream", [False, True])
async def test_it_is_left_out_with_a_warning_where_the_settings_say_so(path: str, stream: bool) -> None:
    more = {"min_p": 0.1, "mirostat": 2, 'a"\nb': {}, "stream": stream, "top_k": -1}
    if stream and path.endswith("completions"):
        more["stream_options"] = {"made_up": True, "include_usage": True}
    async with opened(ignores=True) as (_, http):
        answer = await http.post(path, json=BODIES[path] | more)
        assert answer.status_code == 200
        names = answer.headers["warning"].removeprefix('299 - "Parameters were ignored: ').removesuffix('"').split(", ")
        assert {"mirostat", "a??b", "min_p"} <= set(names) and "top_k" not in names
        assert ("stream_options.made_up" in names) == ("stream_options" in more)
        if "stream_options" in more:
            assert '"completion_tokens"' in answer.text
        wrong = await http.post(path, json=BODIES[path] | {"mirostat": 2, "temperature": 9})
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "temperature")
        assert "warning" not in (await http.post(path, json=BODIES[path])).headers


QUERIES: dict[str, Any] = {
    "/v1/responses/{response_id}": ResponseRetrieveParamsNonStreaming,
    "/v1/responses/{response_id}/input_items": InputItemListParams,
    "/v1/conversations/{conversation}/items": ItemListParams,
    "/v1/conversations/{conversation}/items/{item_id}": ItemRetrieveParams,
    "/v1/files": FileListParams,
    "/v1/vector_stores": VectorStoreListParams,
    "/v1/vector_stores/{store_id}/files": StoreFileListParams,
    "/v1/vector_stores/{store_id}/file_batches/{batch_id}/files": FileBatchListFilesParams,
}


def test_every_parameter_of_queries_of_openais_sdk_is_known() -> None:
    known = queries(document())
    for path, parameters in QUERIES.items():
        sent = {"include[]" if name == "include" else name for name in get_type_hints(parameters)}
        assert sent - {"vector_store_id", "conversation_id"} <= set(known[path]), path
    assert "include[]" in [each["name"] for each in document()["paths"][ITEMS]["post"]["parameters"]]


QUERIED = (
    "/v1/files",
    "/v1/sessions",
    "/v1/vector_stores",
    "/v1/models",
    "/v1/responses/none/input_items",
    "/v1/usage",
)


async def test_what_is_unknown_in_a_query_is_refused_or_named_as_in_a_body() -> None:
    async with opened(ignores=False) as (assembly, http):
        for path in QUERIED:
            answer = await http.get(path, params={"api-version": "1", "limt": "5", "more": "x"})
            error = answer.json()["error"]
            assert (answer.status_code, error["code"], error["param"]) == (400, "unknown_parameter", "limt"), path
        known = {"api-version": "1", "beta": "true", "client_version": "1", "x_tag": "a", "x-id": "b"}
        for path in ("/v1/sessions", "/v1/models"):
            answer = await http.get(path, params=known)
            assert answer.status_code == 200 and "warning" not in answer.headers
        asked = {"model": SIMULATED, "messages": SAID}
        assert (await http.post("/v1/chat/completions?api-version=1", json=asked)).status_code == 200
        refused = await http.post("/v1/chat/completions?stream=true", json=asked)
        assert refused.json()["error"]["param"] == "stream"
        paged = await http.get("/v1/models?limit=1&after_id=a")
        assert paged.headers["warning"] == '299 - "Parameters were ignored: limit, after_id"'
        assembly.gateway.ignores_unknown = True
        answer = await http.get("/v1/sessions", params={"limt": "5", "limit": "1", "more": "x"})
        assert answer.headers["warning"] == '299 - "Parameters were ignored: limt, more"'
        assert (await http.get("/metrics?x=1")).status_code == (await http.get("/healthz?x=1")).status_code == 200


async def test_an_end_that_is_ignored_and_a_least_length(client: openai.AsyncOpenAI, server: Serving) -> None:
    async def written(**more: Any) -> int:
        done = await client.chat.completions.create(model=SIMULATED, messages=SAID, max_tokens=200, extra_body=more)  # type: ignore[arg-type]
        assert done.usage is not None
        return done.usage.completion_tokens

    plain = await written()
    assert plain < 200 == await written(ignore_eos=True)
    assert await written(min_tokens=150) >= 150 > plain
    assert server.engine.asked[-1].min_tokens == 150


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_each_chunk_has_the_usage_so_far(path: str) -> None:
    body = {
        "model": SIMULATED,
        "stream": True,
        "n": 2,
        "temperature": 1,
        "max_tokens": 30,
        "ignore_eos": True,
        "seed": 2,  # with 1 an answer to the bare prompt ends a token early
    }
    body |= {"prompt": "hello"} if path == "/v1/completions" else {"messages": SAID}
    async with opened(ignores=False) as (_, http):
        alone = {"continuous_usage_stats": True}
        refused = await http.post(path, json=body | {"stream_options": alone})
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_request")
        answer = await http.post(path, json=body | {"stream_options": {"include_usage": True, **alone}})
    chunks = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    last = chunks.pop()
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 60
    for index in range(2):
        counts = [each["usage"] for each in chunks if each["choices"][0]["index"] == index]
        assert counts.pop(0) is None, "the role comes before the first token"
        outputs = [each["completion_tokens"] for each in counts]
        assert outputs == sorted(outputs) and outputs[0] > 0 and outputs[-1] == 30 and len(set(outputs)) >= 3
        for each in counts:
            assert each["prompt_tokens"] == last["usage"]["prompt_tokens"] > 0
            assert each["total_tokens"] == each["prompt_tokens"] + each["completion_tokens"]
            CompletionUsage.model_validate(each, strict=True)


@doors
async def test_tools_are_refused_where_no_model_calls_them(path: str) -> None:
    flat = path == "/v1/responses"
    tools = [{"type": "function", **FUNCTION} if flat else {"type": "function", "function": FUNCTION}]
    async with opened(ignores=True) as (_, http):
        answer = await http.post(path, json=BODIES[path] | {"tools": tools})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unsupported_parameter")
        assert answer.json()["error"]["param"] == "tools"
        idle = await http.post(path, json=BODIES[path] | {"tools": tools, "tool_choice": "none"})
        assert idle.status_code == 200


async def test_tools_are_refused_over_websocket_where_no_model_calls_them() -> None:
    async with (
        assembled(engine=ENGINE) as assembly,
        connected(assembly.server.url.replace("http", "ws") + "/v1/ws") as wire,
    ):
        with pytest.raises(RuntimeError, match=r"unsupported_parameter.*cannot call tools"):
            await wire.create(tools=[FUNCTION])
        session = await wire.create()
        with pytest.raises(RuntimeError, match=r"unsupported_parameter.*cannot call tools"):
            await wire.command("session.update", session=session, tools=[FUNCTION])


async def test_tools_are_refused_over_grpc_where_no_model_calls_them() -> None:
    async with opened_grpc(ENGINE) as door:
        tools = [ParseDict(FUNCTION, pb.Tool())]
        session = (await door.stub.Create(pb.SessionCreate(id="1"))).session
        for refused in (
            door.stub.Create(pb.SessionCreate(id="2", tools=tools)),
            door.stub.Update(pb.SessionUpdate(id="3", session=session, tools=tools)),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await refused
            assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            error = error_of(raised.value)
            assert (error.code, error.param) == ("unsupported_parameter", "tools")
            assert error.message == f"The model {SIMULATED!r} cannot call tools."


async def test_sessions_refuse_what_the_engine_has_not_before_anything_is_written() -> None:
    """Whatever the OpenAI endpoints do with such parameters here: session commands have no `Warning`."""
    known = SimulatedEngine(ENGINE).info.sampling
    async with opened(ignores=True) as (assembly, http), connected(assembly.ws) as wire:
        session = await wire.create()
        before = (await http.get(f"/v1/sessions/{session}")).json()
        for field, sampling in each_field().items():
            if field in known:
                continue
            message = {"session": session, "content": "hello", **msgspec.to_builtins(sampling)}
            answer = await http.post("/v1/commands", json={"type": "message.create", "id": new_ulid(), **message})
            error = answer.json()["error"]
            assert (answer.status_code, error["code"], error["param"]) == (400, "unsupported_parameter", field)
            with pytest.raises(RuntimeError, match=f"unsupported_parameter.*'param': '{field}'"):
                await wire.command("message.create", **message)
        assert (await http.get(f"/v1/sessions/{session}")).json() == before


IMAGE: dict[str, Any] = {
    "/v1/chat/completions": {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    "/v1/responses": {"type": "input_image", "image_url": "data:image/png;base64,AAAA"},
}


@doors
async def test_an_image_in_a_history_is_left_out_where_unknown_things_are(path: str) -> None:
    chat = path == "/v1/chat/completions"
    words = {"type": "text" if chat else "input_text", "text": "what is this?"}
    said = [
        {"role": "user", "content": [words, IMAGE[path]]},
        {"role": "assistant", "content": "A cat."},
        {"role": "user", "content": "and now?"},
    ]
    body = {"model": SIMULATED, ("messages" if chat else "input"): said}
    async with opened(ignores=False) as (_, http):
        refused = await http.post(path, json=body)
        assert refused.status_code == 400 and refused.json()["error"]["param"].endswith("[0].content[1].type")
    async with opened(ignores=True) as (_, http):
        answer = await http.post(path, json=body)
        assert answer.status_code == 200 and "warning" in answer.headers
        assert f"[0].content[1] ({IMAGE[path]['type']})" in answer.headers["warning"]
