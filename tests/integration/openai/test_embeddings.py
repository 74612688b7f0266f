"""`/v1/embeddings` and `/v1/rerank` as clients see them: OpenAI's own SDK, and the packaged model in its processes."""

from __future__ import annotations

import base64
from array import array
from collections.abc import AsyncIterator
from types import SimpleNamespace

import httpx
import openai
import pytest
import pytest_asyncio

from inference import open_embedder
from inference.embedding import pool
from inference.simulated import SimulatedOptions
from sessions.metrics import Metrics
from sessions.model.types import EMBEDDINGS, SessionKey, TenantId
from sessions.retrieval.services import Retrieval
from sessions.routing.models_file import ModelPools, ModelsFile, PoolModel
from sessions.turn.keyword_filter import KeywordFilterSet
from tests.support.doors.openai_server import SIMULATED, Serving, serving

MODEL = "all-minilm-l6-v2"


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[Serving]:
    with pytest.MonkeyPatch.context() as patch:
        # Where all cores are taken, a process of the lowest priority may wait for longer than a test does.
        patch.setattr(pool, "QUICK_NICENESS", 0)
        patch.setattr(pool, "BULK_NICENESS", 0)
        async with (
            open_embedder(SimpleNamespace(embeddings=""), Metrics(), {}) as embedder,
            serving(
                SimulatedOptions(step_base_s=0.001),
                filters=KeywordFilterSet(input_phrases=["sesame"]),
                retrieval=Retrieval(embedder),
            ) as made,
        ):
            yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(server: Serving) -> AsyncIterator[openai.AsyncOpenAI]:
    async with server.client() as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http(server: Serving) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.server.url, timeout=90) as made:
        yield made


def cosine(first: list[float], second: list[float]) -> float:
    return sum(a * b for a, b in zip(first, second, strict=True))


async def test_openais_client_gets_vectors_in_both_encodings(
    client: openai.AsyncOpenAI, http: httpx.AsyncClient, server: Serving
) -> None:
    texts = ["a dog in the park", "a puppy outdoors", "quarterly tax returns"]
    plain = await client.embeddings.create(model=MODEL, input=texts, encoding_format="float")
    assert [each.index for each in plain.data] == [0, 1, 2] and plain.model == MODEL
    first, second, third = (each.embedding for each in plain.data)
    assert cosine(first, second) > 0.5 > cosine(first, third) and len(first) == 384
    assert plain.usage.prompt_tokens == plain.usage.total_tokens > 10
    packed = await client.embeddings.create(model=MODEL, input=texts[0])  # the SDK asks for base64 by itself
    assert packed.data[0].embedding == pytest.approx(first, abs=1e-6)
    raw = (await http.post("/v1/embeddings", json={"input": texts[0], "encoding_format": "base64"})).json()
    assert array("f", base64.b64decode(raw["data"][0]["embedding"])).tolist() == pytest.approx(first, abs=1e-6)
    rows = await server.gateway.store.usage.of_session(SessionKey(TenantId("local"), EMBEDDINGS))
    rows = rows[-3:]
    assert len(rows) == 3 and rows[0].row.usage.input_tokens == plain.usage.prompt_tokens
    assert {row.row.model for row in rows} == {MODEL}


async def test_token_ids_are_taken_and_judged(client: openai.AsyncOpenAI) -> None:
    hello = await client.embeddings.create(model=MODEL, input="hello")
    ids = await client.embeddings.create(model=MODEL, input=[[7592], [7592]])
    assert [each.embedding for each in ids.data] == [hello.data[0].embedding] * 2
    assert (await client.embeddings.create(model=MODEL, input=[7592])).data[0].embedding == hello.data[0].embedding


async def test_wrong_requests_are_refused(http: httpx.AsyncClient) -> None:
    for given, status, code in (
        ({"input": "open sesame"}, 400, "content_filter"),
        ({"input": "x", "dimensions": 256}, 400, "unsupported_parameter"),
        ({"input": "x", "model": "text-embedding-3-small"}, 404, "model_not_found"),
        ({"input": ["fine", "word " * 600]}, 400, "context_length_exceeded"),
        ({"input": []}, 400, "invalid_request"),
        ({"input": ""}, 400, "invalid_request"),
        ({"input": [[40_000]]}, 400, "invalid_request"),
        ({"input": [1.5]}, 400, "invalid_request"),
        ({"input": ["x"] * 2_049}, 400, "invalid_request"),
        ({"input": "x", "speed": 1}, 400, "unknown_parameter"),
        ({}, 400, "missing_required_parameter"),
    ):
        answer = await http.post("/v1/embeddings", json=given)
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), (given, answer.text[:300])


async def test_documents_in_the_order_in_which_they_answer(http: httpx.AsyncClient) -> None:
    documents = ["Bananas are yellow.", {"text": "Paris is the capital of France."}, "France is in Europe."]
    asked = {"model": MODEL, "query": "What is the capital of France?", "documents": documents}
    answer = (await http.post("/v1/rerank", json={**asked, "top_n": 2, "return_documents": True})).json()
    assert [each["index"] for each in answer["results"]] == [1, 2] and answer["model"] == MODEL
    assert answer["results"][0]["document"] == {"text": "Paris is the capital of France."}
    assert answer["results"][0]["relevance_score"] > answer["results"][1]["relevance_score"]
    for path in ("/rerank", "/v2/rerank"):
        again = (await http.post(path, json=asked)).json()
        assert len(again["results"]) == 3 and "document" not in again["results"][0]
    assert again["usage"]["total_tokens"] > 20
    refused = await http.post("/v1/rerank", json={**asked, "query": "open sesame"})
    assert refused.json()["error"]["code"] == "content_filter"


async def test_a_server_without_models_says_so() -> None:
    async with serving(SimulatedOptions(step_base_s=0.001)) as bare, bare.client() as client:
        with pytest.raises(openai.InternalServerError, match="no embedding models"):
            await client.embeddings.create(model=MODEL, input="x")


async def test_a_name_of_the_models_file_is_no_embedding_model(
    client: openai.AsyncOpenAI, server: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = ModelsFile(models={SIMULATED: PoolModel(quality=1)}, aliases={MODEL: SIMULATED})
    monkeypatch.setattr(server.gateway, "pools", lambda: ModelPools(file, "1"))
    listed = [model.model_dump() for model in (await client.models.list()).data]
    assert not any(model["capabilities"]["embedding"] for model in listed)


async def test_embedding_models_are_listed_behind_those_that_chat(client: openai.AsyncOpenAI, server: Serving) -> None:
    listed = [each.model_dump() for each in (await client.models.list()).data]
    assert [each["id"] for each in listed] == [SIMULATED, MODEL]
    assert [each["capabilities"]["embedding"] for each in listed] == [False, True]
    assert listed[1]["output_modalities"] == ["embedding"] and listed[1]["context_window"] == 512
    assert (await client.models.retrieve(MODEL)).model_dump() == listed[1]
    with pytest.raises(openai.NotFoundError):
        await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "hello"}])
