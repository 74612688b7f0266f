"""Embedding models by name, of the settings' file, of the package and of a server, and the bounds of one request."""

from __future__ import annotations

import asyncio
import json
from array import array
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from inference.embedding import endpoint, opening
from inference.embedding.catalog import EmbeddingCatalog
from inference.embedding.endpoint import PIECE_INPUTS, EndpointEmbedder
from inference.embedding.models_file import EmbeddingFile, EndpointModel, read_embedding_file
from inference.embedding.packaged import MODEL, BadInputs, PackagedModel, installed, package_folder
from inference.embedding.pool import PackagedEmbedder
from inference.tools.outbound import ToolHttpClient
from inference.tools.secrets import SecretHeader
from sessions.metrics import Gauge, Metrics
from sessions.model.errors import BadInput, Overloaded, TooLarge, Unavailable
from sessions.model.types import TenantId
from sessions.public_addresses import AddressRules
from sessions.retrieval.embedding import CHARACTERS_MAX, DOCUMENTS_MAX, INPUTS_MAX
from tests.support.doors.tool_service import Asked, ToolService, reply
from tests.support.engines.made_up_embedder import MadeUpEmbedder

# -- catalog
ACME = TenantId("acme")
OTHER = EndpointModel(url="https://a.example/v1", dimensions=8)


class Packaged:
    """In place of the processes."""

    model = MODEL

    def __init__(self) -> None:
        self.made = MadeUpEmbedder()

    async def embed(self, tenant: TenantId, inputs: Any, dimensions: int | None) -> Any:
        return await self.made.embed(tenant, "made-up", inputs)

    async def rank(self, tenant: TenantId, query: str, documents: Any) -> Any:
        return await self.made.rank(tenant, "made-up", query, documents)

    async def split(self, tenant: TenantId, text: str) -> Any:
        return await self.made.split(tenant, "made-up", text)

    async def decode(self, tenant: TenantId, inputs: Any) -> Any:
        return await self.made.decode(tenant, "made-up", inputs)


def catalog() -> EmbeddingCatalog:
    return EmbeddingCatalog(cast(PackagedEmbedder, Packaged()), cast(ToolHttpClient, object()))


async def test_each_is_asked_in_its_own_way() -> None:
    made = catalog()
    made.put(EmbeddingFile(models={"other": OTHER}))
    assert len((await made.embed(ACME, MODEL.name, ["a"])).vectors) == 1
    assert (await made.rank(ACME, MODEL.name, "a", ["a", "b"])).scores == (1, 0)
    assert (await made.split(ACME, MODEL.name, "a b")).starts == (0, 2)
    assert (await made.split(ACME, "other", "abcdefgh")).starts == (0, 4)
    assert await made.decode(ACME, MODEL.name, [(1, 2)]) == ["1 2"] and await made.decode(ACME, "other", ["x"]) == ["x"]
    with pytest.raises(BadInput, match="mean nothing here"):
        await made.decode(ACME, "other", [(1, 2)])
    with pytest.raises(BadInput, match="ranks no documents"):
        await made.rank(ACME, "other", "a", ["b"])


async def test_bounds_of_a_request() -> None:
    made, name = catalog(), MODEL.name
    for inputs, error in (
        ([], BadInput),
        ([""], BadInput),
        (["x"] * (INPUTS_MAX + 1), TooLarge),
        (["x" * (CHARACTERS_MAX + 1)], TooLarge),
        ([(1,) * CHARACTERS_MAX], TooLarge),
    ):
        with pytest.raises(error):
            await made.embed(ACME, name, inputs)
    for query, documents, refused in (
        ("", ["a"], BadInput),
        ("q", [], BadInput),
        ("q", ["a"] * (DOCUMENTS_MAX + 1), TooLarge),
        ("q", ["a" * CHARACTERS_MAX], TooLarge),
    ):
        with pytest.raises(refused):
            await made.rank(ACME, name, query, documents)


# -- models file
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ('[models.x]\nurl = "https://a.example/v1"', "dimensions"),
        ('[models.x]\nurl = "http://a.example/v1"\ndimensions = 3', "networks"),
        ('[models.x]\nurl = "https://127.0.0.1/v1"\ndimensions = 3', "networks"),
        ('[models.all-minilm-l6-v2]\nurl = "https://a.example/v1"\ndimensions = 3', "packaged"),
        ('[models.x]\nurl = "https://a.example/v1"\ndimensions = 3\nspeed = 1', "speed"),
        ("models = ", "Invalid value"),
    ],
)
def test_a_file_that_is_wrong_is_refused_as_a_whole(tmp_path: Path, wrong: str, said: str) -> None:
    path = tmp_path / "embeddings.toml"
    path.write_text(wrong)
    with pytest.raises(ValueError, match=said):
        read_embedding_file(path)


# -- opening
FILE = '[models.%s]\nurl = "https://a.example/v1"\ndimensions = 3\n'


async def test_the_packaged_model_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = Metrics()
    async with opening.open_embedder(SimpleNamespace(embeddings=""), metrics, {}) as embedder:
        assert [each.name for each in embedder.models()] == [MODEL.name]
    gauge = metrics.families["embedding_batches_waiting"]
    assert isinstance(gauge, Gauge) and gauge.read() == {("quick",): 0.0, ("bulk",): 0.0}
    monkeypatch.setattr(opening, "installed", lambda: False)
    async with opening.open_embedder(SimpleNamespace(embeddings=""), Metrics(), {}) as embedder:
        with pytest.raises(Unavailable):
            embedder.model(None)


async def test_a_file_is_read_again_and_a_wrong_one_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "embeddings.toml"
    path.write_text(FILE % "first")
    async with opening.open_embedder(SimpleNamespace(embeddings=str(path)), Metrics(), {}) as embedder:
        assert embedder.model(None).name == "first"
        path.write_text("nonsense")
        path.write_text(FILE % "second" + "# longer\n")
        async with asyncio.timeout(60):
            while embedder.model(None).name != "second":
                await asyncio.wait((asyncio.ensure_future(asyncio.Event().wait()),), timeout=0.05)


async def test_a_file_that_is_wrong_from_the_start_ends_the_start(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="embeddings"):
        async with opening.open_embedder(SimpleNamespace(embeddings=str(tmp_path / "none")), Metrics(), {}):
            raise AssertionError("it started")


# -- packaged
@pytest.fixture(scope="module")
def model() -> PackagedModel:
    return PackagedModel()


def test_it_is_installed_for_tests_and_what_is_not_there_says_how_to_get_it() -> None:
    assert installed()
    with pytest.raises(FileNotFoundError, match="make setup-retrieval"):
        package_folder("no_such_package_here")


def test_token_ids_are_the_text_that_they_stand_for(model: PackagedModel) -> None:
    ids = tuple(model._tokenizer.encode("hello world", add_special_tokens=False).ids)
    assert model.embed((ids,)) == model.embed(("hello world",))
    assert model.embed(((101, *ids, 102),)) == model.embed(("hello world",))
    assert model.decode((ids,)) == ["hello world"]


@pytest.mark.parametrize(("given", "too_long"), [("word " * 600, True), ((99_999_999,), False), ((7,) * 600, True)])
def test_what_it_cannot_take_is_named(model: PackagedModel, given: str | tuple[int, ...], too_long: bool) -> None:
    with pytest.raises(BadInputs) as refused:
        model.embed(("fine", given))
    assert (refused.value.index, refused.value.too_long) == (1, too_long)


def test_documents_are_ranked_by_what_of_the_query_they_have(model: PackagedModel) -> None:
    long = "Nothing of note happened on the farm that year. " * 60 + "The capital of France is Paris."
    documents = ("Bananas are yellow.", "Paris is the capital of France.", long, "")
    scores, tokens = model.rank("What is the capital of France?", documents)
    assert max(range(4), key=scores.__getitem__) == 1 and scores[2] > scores[0] > scores[3] == -1
    assert tokens > 600


def test_tokens_are_where_they_stand(model: PackagedModel) -> None:
    text = "Straße, naïve — 漢字"
    starts, ends = model.split(text)
    assert len(starts) == len(ends) and list(starts) == sorted(starts)
    assert {text[begin:end] for begin, end in zip(starts, ends, strict=True)} >= {",", "—", "漢", "字"}
    assert model.split("") == ([], [])


# -- endpoint
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
    done = await model.embed(ACME, [f"text {number}" for number in range(PIECE_INPUTS + 2)], None)
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
    assert len((await made(service, client, resizes=True).embed(ACME, ["x"], 2)).vectors[0]) == 8
    assert json.loads(service.asked[0].body)["dimensions"] == 2
    with pytest.raises(BadInput, match="384 dimensions and no others"):
        await catalog().embed(ACME, MODEL.name, ["x"], dimensions=2)


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
        await made(service, client).embed(ACME, ["x"], None)


async def test_a_busy_server_is_asked_once_more_and_a_refusal_is_the_callers(
    service: ToolService, client: ToolHttpClient
) -> None:
    service.answer = lambda asked: reply({}, 503) if len(service.asked) == 1 else vectors(asked)
    assert (await made(service, client).embed(ACME, ["x"], None)).tokens == 2
    service.answer = lambda asked: reply({}, 400)
    with pytest.raises(BadInput, match="refuses these inputs"):
        await made(service, client).embed(ACME, ["x"], None)
    service.answer = lambda asked: reply({}, 401)
    with pytest.raises(Unavailable):
        await made(service, client).embed(ACME, ["x"], None)
    service.answer = lambda asked: reply({}, 503)
    with pytest.raises(Unavailable):
        await made(service, client).embed(ACME, ["x"], None)


async def test_more_than_may_wait_are_refused(
    service: ToolService, client: ToolHttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "WAITING_MAX", 0)
    with pytest.raises(Overloaded):
        await made(service, client).embed(ACME, ["x"], None)


async def test_no_secret_no_call(service: ToolService, client: ToolHttpClient) -> None:
    header = {"authorization": SecretHeader(env="KEY")}
    with pytest.raises(Unavailable, match="cannot be called"):
        await made(service, client, headers=header).embed(ACME, ["x"], None)
    assert service.asked == []


async def test_tokens_are_estimated_from_above() -> None:
    model = EndpointEmbedder("m", EndpointModel(url="https://a.example", dimensions=3), None, AddressRules(), {})  # type: ignore[arg-type]
    spans = await model.split(ACME, "Donaudampfschiff, ja!")
    assert (spans.starts[:3], spans.ends[:3]) == ((0, 4, 8), (4, 8, 12)) and len(spans.starts) == 7
