"""Embeddings of a server of somebody else's: what is sent, and everything that it may answer wrong."""

from __future__ import annotations

import json
from array import array
from collections.abc import AsyncIterator
from typing import Any

import pytest

from inference.embedding import endpoint
from inference.embedding.endpoint import PIECE_INPUTS, EndpointEmbedder
from inference.embedding.models_file import EndpointModel
from inference.tools.outbound import ToolHttpClient
from inference.tools.secrets import SecretHeader
from sessions.model.errors import BadInput, Unavailable
from sessions.public_addresses import AddressRules
from tests.support.doors.tool_service import Asked, ToolService, reply


def vectors(asked: Asked, *, dimensions: int = 3) -> bytes:
    inputs = json.loads(asked.body)["input"]
    rows = [{"index": at, "embedding": [float(at + 1)] * dimensions} for at in reversed(range(len(inputs)))]
    return reply({"data": rows, "usage": {"prompt_tokens": 2 * len(inputs)}})


@pytest.fixture
async def service() -> AsyncIterator[ToolService]:
    async with ToolService() as made:
        made.answer = vectors
        yield made


@pytest.fixture
async def client() -> AsyncIterator[ToolHttpClient]:
    async with ToolHttpClient() as made:
        yield made


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "PAUSE_S", 0)


def made(service: ToolService, client: ToolHttpClient, environment: dict[str, str] | None = None, **more: Any) -> Any:
    given = EndpointModel(url=f"{service.url}/v1/", dimensions=3, **more)
    return EndpointEmbedder("mine", given, client, AddressRules(["127.0.0.0/8"]), environment or {})


async def test_inputs_go_in_pieces_and_come_back_in_order_with_length_one(
    service: ToolService, client: ToolHttpClient
) -> None:
    header = {"authorization": SecretHeader(env="KEY", prefix="Bearer ")}
    model = made(service, client, {"KEY": "s3cret"}, model="theirs", headers=header)
    done = await model.embed([f"text {number}" for number in range(PIECE_INPUTS + 2)], None)
    assert len(done.vectors) == PIECE_INPUTS + 2 and done.tokens == 2 * (PIECE_INPUTS + 2)
    assert all(sum(value * value for value in array("f", each)) == pytest.approx(1) for each in done.vectors)
    first, second = service.asked
    assert first.target == "/v1/embeddings" and first.headers["authorization"] == "Bearer s3cret"
    assert json.loads(second.body) == {
        "model": "theirs",
        "input": [f"text {PIECE_INPUTS}", f"text {PIECE_INPUTS + 1}"],
        "encoding_format": "float",
    }


async def test_dimensions_are_passed_on_where_the_model_resizes(service: ToolService, client: ToolHttpClient) -> None:
    service.answer = lambda asked: vectors(asked, dimensions=2)
    assert len((await made(service, client, resizes=True).embed(["x"], 2)).vectors[0]) == 8
    assert json.loads(service.asked[0].body)["dimensions"] == 2
    with pytest.raises(BadInput, match="3 dimensions and no others"):
        await made(service, client).embed(["x"], 2)


@pytest.mark.parametrize(
    "answer",
    [
        {"data": []},
        {"data": [{"index": 0, "embedding": [1.0, 2.0]}]},
        {"data": [{"index": 0, "embedding": [0.0, 0.0, 0.0]}]},
        {"data": [{"index": 1, "embedding": [1.0, 2.0, 3.0]}]},
        {"data": [{"index": 0, "embedding": ["a", "b", "c"]}]},
        {"nothing": 1},
    ],
)
async def test_an_answer_that_is_none_is_not_taken_for_one(
    service: ToolService, client: ToolHttpClient, answer: Any
) -> None:
    service.answer = lambda asked: reply(answer)
    with pytest.raises(Unavailable, match="does not answer as it should"):
        await made(service, client).embed(["x"], None)


async def test_a_busy_server_is_asked_once_more_and_a_refusal_is_the_callers(
    service: ToolService, client: ToolHttpClient
) -> None:
    service.answer = lambda asked: reply({}, 503) if len(service.asked) == 1 else vectors(asked)
    assert (await made(service, client).embed(["x"], None)).tokens == 2
    service.answer = lambda asked: reply({}, 400)
    with pytest.raises(BadInput, match="refuses these inputs"):
        await made(service, client).embed(["x"], None)
    service.answer = lambda asked: reply({}, 401)
    with pytest.raises(Unavailable):
        await made(service, client).embed(["x"], None)
    service.answer = lambda asked: reply({}, 503)
    with pytest.raises(Unavailable):
        await made(service, client).embed(["x"], None)


async def test_no_secret_no_call(service: ToolService, client: ToolHttpClient) -> None:
    header = {"authorization": SecretHeader(env="KEY")}
    with pytest.raises(Unavailable, match="cannot be called"):
        await made(service, client, headers=header).embed(["x"], None)
    assert service.asked == []


async def test_documents_are_ranked_there(service: ToolService, client: ToolHttpClient) -> None:
    rows = [{"index": 1, "relevance_score": 0.9}, {"index": 0, "relevance_score": 0.1}]
    service.answer = lambda asked: reply({"results": rows, "usage": {"total_tokens": 7}})
    ranked = await made(service, client, ranks=True).rank("q", ["a", "b"])
    assert (ranked.scores, ranked.tokens) == ((0.1, 0.9), 7)
    assert service.asked[0].target == "/v1/rerank"
    service.answer = lambda asked: reply({"results": rows[:1]})
    with pytest.raises(Unavailable):
        await made(service, client, ranks=True).rank("q", ["a", "b"])


def test_tokens_are_estimated_from_above() -> None:
    model = EndpointEmbedder("m", EndpointModel(url="https://a.example", dimensions=3), None, AddressRules(), {})  # type: ignore[arg-type]
    spans = model.split("Donaudampfschiff, ja!")
    assert (spans.starts[:3], spans.ends[:3]) == ((0, 4, 8), (4, 8, 12)) and len(spans.starts) == 7
