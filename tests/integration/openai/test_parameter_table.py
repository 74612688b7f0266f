"""The table of docs/openai.md, sent: what is honoured reaches the engine, and what is not is named."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest
import pytest_asyncio

from deploy.openai_page import NONE, PREFIXES, QUERY, ROWS, Row, document
from inference.sampling import HONOURED
from inference.simulated import SimulatedOptions
from sessions.model.events import ResponseCreated
from sessions.model.generation import EngineInfo
from sessions.turn.keyword_filter import KeywordFilterSet
from tests.support.doors.assembly import wall_ms
from tests.support.doors.openai_server import SIMULATED, ScriptedEngine, Serving, serving
from tests.support.engines.made_up_embedder import made_up_retrieval
from transport.openai.left_out import left_out
from transport.openai.request_models import ResponsesRequest

HELLO: Any = [{"role": "user", "content": "hello"}]
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "ChatRequest": ("/v1/chat/completions", {"model": SIMULATED, "messages": HELLO}),
    "CompletionRequest": ("/v1/completions", {"model": SIMULATED, "prompt": "hello"}),
    "ResponsesRequest": ("/v1/responses", {"model": SIMULATED, "input": "hello"}),
    "InputTokensRequest": ("/v1/responses/input_tokens", {"model": SIMULATED, "input": "hello"}),
    "CompactRequest": ("/v1/responses/compact", {"model": SIMULATED, "input": HELLO}),
    "EmbeddingsRequest": ("/v1/embeddings", {"input": "hello"}),
    "ModerationRequest": ("/v1/moderations", {"input": "hello"}),
    "NewVectorStore": ("/v1/vector_stores", {}),
    "VectorStoreChange": ("/v1/vector_stores/STORE", {"name": "x"}),
    "StoreSearch": ("/v1/vector_stores/STORE/search", {"query": "fox"}),
    "NewStoreFile": ("/v1/vector_stores/STORE/files", {"text": "a fox"}),
    "NewFileBatch": ("/v1/vector_stores/STORE/file_batches", {"files": [{"text": "a fox"}]}),
}
FIELDS = {
    "repetition_penalty": "repeat_penalty",
    **dict.fromkeys(("max_tokens", "max_completion_tokens", "max_output_tokens"), "max_output_tokens"),
}


class WillingEngine(ScriptedEngine):
    """Takes every parameter of sampling."""

    @property
    def info(self) -> EngineInfo:
        return msgspec.structs.replace(super().info, sampling=HONOURED | {"stop"})


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[Serving]:
    options = SimulatedOptions(step_base_s=0.0005, answer_tokens_mean=4)
    filters = KeywordFilterSet(input_phrases=["sesame"])
    async with (
        made_up_retrieval(wall_ms) as retrieval,
        serving(options, engine=WillingEngine(options), filters=filters, retrieval=retrieval) as made,
    ):
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http(server: Serving) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.server.url, timeout=60) as made:
        yield made


async def sent(http: httpx.AsyncClient, schema: str, body: dict[str, Any]) -> httpx.Response:
    path, base = BODIES[schema]
    if "STORE" in path:
        path = path.replace("STORE", (await http.post("/v1/vector_stores", json={})).json()["id"])
    return await http.post(path, json=base | body)


def warning(answer: httpx.Response) -> list[str]:
    given = answer.headers.get("warning", "")
    return given.removeprefix('299 - "Parameters were ignored: ').removesuffix('"').split(", ") if given else []


def sampled(*effects: str) -> list[Any]:
    return [
        pytest.param(schema, name, row, id=f"{schema}.{name}")
        for schema, rows in ROWS.items()
        for name, row in rows.items()
        if row.effect in effects and row.sample != NONE
    ]


async def test_the_table_is_of_the_document_that_is_served(http: httpx.AsyncClient) -> None:
    served = (await http.get("/openapi.json")).json()
    paths = {path: about for path, about in served["paths"].items() if path.startswith(PREFIXES)}
    made = json.loads(json.dumps(document()))
    assert made["paths"] == paths
    assert [name for name in made["components"]["schemas"] if name not in served["components"]["schemas"]] == []


@pytest.mark.parametrize(("schema", "name", "row"), sampled("refused", "warned", "needs nothing"))
async def test_one_answer_shows_what_happens(http: httpx.AsyncClient, schema: str, name: str, row: Row) -> None:
    answer = await sent(http, schema, {name: row.sample, **row.beside})
    named = row.named or name
    if row.effect == "refused":
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, named), answer.text
    else:
        assert answer.status_code == 200, answer.text
        assert warning(answer) == ([named] if row.effect == "warned" else [])
        without = await sent(http, schema, row.beside)
        assert not warning(without), "it is the parameter that is named"


@pytest.mark.parametrize(
    "path", [path for path, rows in QUERY.items() if any(each.sample != NONE for each in rows.values())]
)
async def test_queries_are_named_as_bodies_are(http: httpx.AsyncClient, path: str) -> None:
    made = (await http.post("/v1/responses", json={"model": SIMULATED, "input": "hello"})).json()["id"]
    for name, row in QUERY[path].items():
        if row.sample != NONE:
            answer = await http.get(path.replace("{response_id}", made), params={name: row.sample})
            assert answer.status_code == 200 and warning(answer) == [row.named or name]


@pytest.mark.parametrize(("schema", "name", "row"), sampled("honoured"))
async def test_what_is_drawn_otherwise_reaches_the_engine(
    server: Serving, http: httpx.AsyncClient, schema: str, name: str, row: Row
) -> None:
    limit = {"max_output_tokens" if schema == "ResponsesRequest" else "max_tokens": 8}  # for an answer without an end
    answer = await sent(http, schema, {name: row.sample, **row.beside} | (limit if name == "ignore_eos" else {}))
    assert answer.status_code == 200 and not warning(answer), answer.text
    reached = getattr(server.engine.asked[-1], FIELDS.get(name, name))
    assert json.loads(json.dumps(reached)) == row.sample


@pytest.mark.parametrize("schema", ["ChatRequest", "CompletionRequest", "ResponsesRequest"])
async def test_metadata_stands_in_the_log(server: Serving, http: httpx.AsyncClient, schema: str) -> None:
    answer = await sent(http, schema, {"metadata": {"order": "66"}})
    log = [record.event for record in server.log(answer.headers["x-session-id"])]
    assert [each for each in log if isinstance(each, ResponseCreated)][-1].response.metadata == {"order": "66"}


async def test_a_safety_identifier_is_a_user(http: httpx.AsyncClient) -> None:
    asked: list[Any] = [{"role": "user", "content": "A question of Ann's."}]
    whole = await sent(http, "ChatRequest", {"messages": asked, "safety_identifier": "ann"})
    asked += [whole.json()["choices"][0]["message"], {"role": "user", "content": "and?"}]
    for user in ("ann", "bob"):
        more = await sent(http, "ChatRequest", {"messages": asked, "safety_identifier": user})
        assert (more.headers["x-session-id"] == whole.headers["x-session-id"]) is (user == "ann")


async def test_items_are_laid_below_a_conversation(http: httpx.AsyncClient) -> None:
    made = (await http.post("/v1/conversations", json={"metadata": {"a": "b"}})).json()
    assert made["metadata"] == {"a": "b"}
    path = f"/v1/conversations/{made['id']}/items"
    assert (await http.post(path, json={"items": HELLO})).status_code == 200
    (item,) = (await http.get(path)).json()["data"]
    assert item["content"][0]["text"] == "hello"


async def test_a_score_that_is_too_low_finds_nothing(http: httpx.AsyncClient) -> None:
    store = (await http.post("/v1/vector_stores", json={})).json()["id"]
    path = f"/v1/vector_stores/{store}"
    made = (await http.post(f"{path}/files", json={"text": "The quick fox jumps."})).json()
    while made["status"] == "in_progress":
        made = (await http.get(f"{path}/files/{made['id']}")).json()
    for threshold, found in ((0.0, 1), (1.0, 0)):
        asked = {"query": "a river", "ranking_options": {"score_threshold": threshold}}
        assert len((await http.post(f"{path}/search", json=asked)).json()["data"]) == found


FORMAT: Any = {"name": "x", "description": "d", "schema": {"type": "object"}, "strict": True}
CODE: Any = {"type": "code_interpreter", "container": {"type": "auto"}}
MCP: Any = {"type": "mcp", "server_label": "files"}
INSIDE: list[tuple[str, dict[str, Any], int, str]] = [
    ("ChatRequest", {"messages": [{**HELLO[0], "name": "ann"}]}, 200, "messages[0].name"),
    (
        "ChatRequest",
        {"response_format": {"type": "json_schema", "json_schema": FORMAT}},
        200,
        "response_format.json_schema.description",
    ),
    (
        "ChatRequest",
        {"stream": True, "stream_options": {"include_obfuscation": True}},
        200,
        "stream_options.include_obfuscation",
    ),
    ("ResponsesRequest", {"text": {"format": {"type": "json_schema", **FORMAT}}}, 200, "text.format.description"),
    ("ResponsesRequest", {"text": {"verbosity": "low"}}, 200, "text.verbosity"),
    (
        "ResponsesRequest",
        {"tools": [{**MCP, "require_approval": {"never": {"read_only": True}}}]},
        400,
        "tools[0].require_approval.never.read_only",
    ),
]


@pytest.mark.parametrize(("schema", "body", "status", "named"), INSIDE, ids=[named for *_, named in INSIDE])
async def test_what_is_inside_is_named(
    http: httpx.AsyncClient, schema: str, body: dict[str, Any], status: int, named: str
) -> None:
    answer = await sent(http, schema, body)
    assert answer.status_code == status, answer.text
    assert (warning(answer) if status == 200 else [answer.json()["error"]["param"]]) == [named]


@pytest.mark.parametrize(
    ("tool", "named"),
    [
        ({**CODE, "container": {"type": "auto", "memory_limit": "4g"}}, "tools[0].container.memory_limit"),
        ({**MCP, "server_description": "my files"}, "tools[0].server_description"),
    ],
)
async def test_what_the_tools_file_says_is_named(tool: dict[str, Any], named: str) -> None:
    assert left_out(ResponsesRequest.model_validate({"input": "x", "tools": [tool]})) == [named]
