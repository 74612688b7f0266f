"""`/v1/vector_stores` as clients see them: OpenAI's own SDK, made-up vectors, and `file_search` in an answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import ResponseFileSearchToolCall

from inference.simulated import SimulatedOptions, decode
from sessions.model.errors import BadInput
from sessions.model.knowledge.documents import DocumentText
from sessions.model.types import LOCAL_PRINCIPAL
from sessions.retrieval.file_search import FileSearch
from sessions.retrieval.search import Deadlines
from sessions.retrieval.services import Retrieval
from sessions.turn.keyword_filter import KeywordFilterSet
from tests.support.doors.assembly import wall_ms
from tests.support.doors.openai_server import SIMULATED, Serving, serving
from tests.support.engines.made_up_embedder import MadeUpEmbedder, made_up_retrieval

FOX = "# Animals\n\nThe quick fox jumps over the lazy dog.\n\n# Money\n\nThe central bank raised its interest rates."
STRANGE_CHUNKS = {"max_chunk_size_tokens": 16, "chunk_overlap_tokens": 16}
FILE_SEARCH: Any = {"type": "function", "name": "file_search", "server": True}
CALL = 'Let me look. <tool_call>\n{"name": "file_search", "arguments": {"query": "interest rates"}}\n</tool_call>'


class PlainTexts:
    """A reader of documents for which each is UTF-8."""

    async def extract(self, content: bytes, *, filename: str = "", media_type: str = "") -> DocumentText:
        try:
            return DocumentText("text/plain", content.decode())
        except UnicodeDecodeError as error:
            raise BadInput("file_unreadable", "The file cannot be read.") from error


@pytest.fixture
async def retrieval() -> AsyncIterator[Retrieval]:
    async with made_up_retrieval(wall_ms) as made:
        yield made


@pytest.fixture
async def server(retrieval: Retrieval) -> AsyncIterator[Serving]:
    stores = retrieval.vector_stores
    assert stores is not None
    async with serving(
        SimulatedOptions(step_base_s=0.001),
        tools=FileSearch(stores.passages, stores.search, None, Deadlines()),
        filters=KeywordFilterSet(input_phrases=["sesame"]),
        retrieval=retrieval,
        documents=PlainTexts(),
    ) as made:
        yield made


async def read_in(http: httpx.AsyncClient, store: str, **document: Any) -> dict[str, Any]:
    made = await http.post(f"/v1/vector_stores/{store}/files", json=document)
    assert made.status_code == 200, made.text
    return await ended(http, f"/v1/vector_stores/{store}/files/{made.json()['id']}")


async def ended(http: httpx.AsyncClient, path: str) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while (shown := (await http.get(path)).json())["status"] == "in_progress":
            await asyncio.wait((asyncio.ensure_future(asyncio.Event().wait()),), timeout=0.02)
    found: dict[str, Any] = shown
    return found


async def test_openais_client_makes_fills_searches_and_deletes_a_store(
    client: openai.AsyncOpenAI, http: httpx.AsyncClient
) -> None:
    store = await client.vector_stores.create(name="library", metadata={"shelf": "1"})
    assert store.status == "completed" and store.name == "library" and store.file_counts.total == 0
    file = await read_in(http, store.id, text=FOX, filename="fox.md", attributes={"lang": "en", "year": 2020})
    assert file["status"] == "completed" and file["last_error"] is None
    await read_in(http, store.id, text="Der Fuchs springt über den Hund.", attributes={"lang": "de"})
    found = await client.vector_stores.search(store.id, query="What jumps over the dog?", max_num_results=3)
    best = found.data[0]
    assert "quick fox" in best.content[0].text and best.filename == "fox.md" and 0 < best.score <= 1
    only: Any = {"type": "eq", "key": "lang", "value": "de"}
    german = await client.vector_stores.search(store.id, query="fox dog Fuchs", filters=only)
    assert [each.attributes for each in german.data] == [{"lang": "de"}]
    listed = await client.vector_stores.files.list(store.id)
    assert {each.id for each in listed.data} >= {file["id"]} and len(listed.data) == 2
    assert (
        await client.vector_stores.files.update(file["id"], vector_store_id=store.id, attributes={"x": 1})
    ).attributes
    content = await client.vector_stores.files.content(file["id"], vector_store_id=store.id)
    assert content.data[0].text == FOX
    assert (await client.vector_stores.update(store.id, name="books")).name == "books"
    assert [each.id for each in (await client.vector_stores.list()).data] == [store.id]
    assert (await client.vector_stores.retrieve(store.id)).file_counts.completed == 2
    assert (await client.vector_stores.files.delete(file["id"], vector_store_id=store.id)).deleted
    gone = await client.vector_stores.search(store.id, query="What jumps over the dog?")
    assert all(each.file_id != file["id"] for each in gone.data)
    assert (await client.vector_stores.delete(store.id)).deleted
    with pytest.raises(openai.NotFoundError):
        await client.vector_stores.search(store.id, query="fox")


async def test_a_passages_place_is_where_it_stands(http: httpx.AsyncClient) -> None:
    store = (await http.post("/v1/vector_stores", json={})).json()["id"]
    how = {"type": "static", "static": {"max_chunk_size_tokens": 16, "chunk_overlap_tokens": 4}}
    await read_in(http, store, text=FOX * 5, chunking_strategy=how)
    for ranker in ("auto", "none", "words", "maxsim"):
        asked = {"query": ["interest", "rates"], "max_num_results": 50, "ranking_options": {"ranker": ranker}}
        found = (await http.post(f"/v1/vector_stores/{store}/search", json=asked)).json()
        assert found["data"] and found["skipped"] == []
        for each in found["data"]:
            span = each["span"]
            assert (FOX * 5)[span["start"] : span["end"]] == each["content"][0]["text"]


async def test_a_batch_of_documents(http: httpx.AsyncClient) -> None:
    store = (await http.post("/v1/vector_stores", json={})).json()["id"]
    files = [{"text": f"Document {number} of many.", "filename": f"{number}.txt"} for number in range(5)]
    batch = (await http.post(f"/v1/vector_stores/{store}/file_batches", json={"files": [*files, {"text": "."}]})).json()
    path = f"/v1/vector_stores/{store}/file_batches/{batch['id']}"
    done = await ended(http, path)
    assert done["status"] == "completed" and done["file_counts"]["completed"] == 6
    page = (await http.get(f"{path}/files", params={"limit": 4, "order": "asc"})).json()
    assert len(page["data"]) == 4 and page["has_more"]
    rest = (await http.get(f"{path}/files", params={"after": page["last_id"], "order": "asc"})).json()
    assert len(rest["data"]) == 2 and not rest["has_more"]
    assert (await http.post(f"{path}/cancel")).json()["status"] == "completed"
    assert (await http.get(f"/v1/vector_stores/{store}/file_batches/vsfb_none")).status_code == 404


async def test_what_is_wrong_is_said(http: httpx.AsyncClient, retrieval: Retrieval) -> None:
    store = (await http.post("/v1/vector_stores", json={})).json()["id"]
    for path, given, code in (
        ("", {"name": "open sesame"}, "content_filter"),
        ("", {"embedding_model": "other"}, "model_not_found"),
        (f"/{store}/files", {"text": "open sesame"}, "content_filter"),
        (f"/{store}/files", {"text": ""}, "invalid_request"),
        (f"/{store}/files", {"text": "x", "attributes": {"k" * 65: 1}}, "invalid_request"),
        (f"/{store}/search", {"query": "open sesame"}, "content_filter"),
        (f"/{store}/search", {"query": "x", "filters": {"type": "like"}}, "invalid_request"),
        ("/vs_none/search", {"query": "x"}, "vector_store_not_found"),
        (f"/{store}/files/file_none", {"attributes": {}}, "vector_store_file_not_found"),
    ):
        answer = await http.post(f"/v1/vector_stores{path}", json=given)
        assert answer.json()["error"]["code"] == code, (path, answer.text)
    strategy = {"type": "static", "static": {"max_chunk_size_tokens": 4000, "chunk_overlap_tokens": 0}}
    answer = await http.post(f"/v1/vector_stores/{store}/files", json={"text": "x", "chunking_strategy": strategy})
    assert "510 tokens" in answer.text
    assert isinstance(retrieval.embedder, MadeUpEmbedder)
    retrieval.embedder.away = True
    partly = (await http.post(f"/v1/vector_stores/{store}/search", json={"query": "x"})).json()
    assert partly["skipped"] == ["embedding"]


async def test_an_answer_looks_documents_up_and_the_prompt_before_it_stays(
    client: openai.AsyncOpenAI, http: httpx.AsyncClient, server: Serving, retrieval: Retrieval
) -> None:
    store = (await http.post("/v1/vector_stores", json={})).json()["id"]
    await read_in(http, store, text=FOX, filename="fox.md")
    assert LOCAL_PRINCIPAL.user is None
    server.engine.script += [CALL, "They were raised [1]."]
    done = await client.responses.create(model=SIMULATED, input="what of the rates?", tools=[FILE_SEARCH])
    assert done.output_text.endswith("They were raised [1].")
    (item,) = [each for each in done.output if each.type == "function_call_output"]
    (result, *_) = json.loads(str(item.output))["results"]
    assert FOX[result["start"] : result["end"]] == result["text"] and "interest rates" in result["text"]
    before, behind, *_ = server.engine.prompts
    assert list(behind[: len(before)]) == list(before), "what was computed stays"
    assert isinstance(retrieval.embedder, MadeUpEmbedder)
    retrieval.embedder.away = True
    server.engine.script += [CALL, "I could not look."]
    partly = await client.responses.create(model=SIMULATED, input="and now?", tools=[FILE_SEARCH])
    (item,) = [each for each in partly.output if each.type == "function_call_output"]
    assert json.loads(str(item.output))["skipped"] == ["retrieval_skipped", "embedding"]


async def uploaded(client: openai.AsyncOpenAI, name: str, content: bytes) -> str:
    return (await client.files.create(file=(name, content), purpose="user_data")).id


async def test_uploaded_files_are_put_into_stores_by_their_ids(
    client: openai.AsyncOpenAI, http: httpx.AsyncClient
) -> None:
    fox, bank = await uploaded(client, "fox.md", FOX.encode()), await uploaded(client, "bank.md", b"A bank.")
    broken = await uploaded(client, "broken.md", b"\xff")
    how: Any = {"type": "static", "static": {"max_chunk_size_tokens": 32, "chunk_overlap_tokens": 4}}
    store = await client.vector_stores.create(file_ids=[fox, fox, broken], chunking_strategy=how)
    done = await ended(http, f"/v1/vector_stores/{store.id}/files/{fox}")
    assert (done["status"], done["filename"], done["chunking_strategy"]) == ("completed", "fox.md", how)
    failed = await client.vector_stores.files.retrieve(broken, vector_store_id=store.id)
    assert failed.status == "failed" and failed.last_error is not None and failed.last_error.message
    again = await client.vector_stores.files.create(store.id, file_id=fox, attributes={"lang": "en"})
    assert (again.id, again.status, again.attributes) == (fox, "completed", {"lang": "en"})
    with pytest.raises(openai.BadRequestError, match="cannot be read"):
        await client.vector_stores.files.create(store.id, file_id=broken)

    batch = await client.vector_stores.file_batches.create(
        store.id, file_ids=[bank, broken], attributes={"kind": "money"}, chunking_strategy=how
    )
    counts = (await ended(http, f"/v1/vector_stores/{store.id}/file_batches/{batch.id}"))["file_counts"]
    assert (counts["completed"], counts["failed"], counts["total"]) == (1, 1, 2)
    same = await client.vector_stores.file_batches.create(store.id, file_ids=[fox])
    counts = (await ended(http, f"/v1/vector_stores/{store.id}/file_batches/{same.id}"))["file_counts"]
    assert counts["completed"] == counts["total"] == 1
    only: Any = {"type": "eq", "key": "kind", "value": "money"}
    page = await client.vector_stores.search(store.id, query="bank", filters=only)
    assert [(each.file_id, each.filename) for each in page.data] == [(bank, "bank.md")]
    for body in ({}, {"file_id": fox, "text": "x"}, {"file_id": "file-none"}):
        answer = await http.post(f"/v1/vector_stores/{store.id}/files", json=body)
        assert answer.status_code in (400, 404) and answer.json()["error"]["param"] == "file_id", answer.text
    before = await client.vector_stores.retrieve(store.id)
    with pytest.raises(openai.NotFoundError):
        await client.vector_stores.file_batches.create(store.id, file_ids=[await uploaded(client, "a", b"a"), "no"])
    assert (await client.vector_stores.retrieve(store.id)).file_counts == before.file_counts


async def test_a_store_that_cannot_be_filled_is_not_left_behind(
    client: openai.AsyncOpenAI, http: httpx.AsyncClient
) -> None:
    fox = await uploaded(client, "fox.md", FOX.encode())
    refused = await uploaded(client, "cave.md", b"Open sesame.")
    large = {"type": "static", "static": {"max_chunk_size_tokens": 4000, "chunk_overlap_tokens": 0}}
    for body in (
        {"file_ids": [fox], "chunking_strategy": large},
        {"file_ids": [fox, refused]},
        {"file_ids": [fox, "file-none"]},
    ):
        assert (await http.post("/v1/vector_stores", json=body)).status_code in (400, 404)
        assert (await client.vector_stores.list()).data == []


async def test_pages_go_on_behind_their_last_row_in_either_order(http: httpx.AsyncClient) -> None:
    stores = [(await http.post("/v1/vector_stores", json={"name": name})).json()["id"] for name in "abc"]
    path = f"/v1/vector_stores/{stores[0]}"
    batch = await http.post(f"{path}/file_batches", json={"files": [{"text": "A fox."}, {"text": "A cat."}]})
    await http.post(f"{path}/files", json={"text": "A dog."})
    in_batch = f"{path}/file_batches/{batch.json()['id']}/files"
    for listed, count in (("/v1/vector_stores", 3), (f"{path}/files", 3), (in_batch, 2)):
        whole = [each["id"] for each in (await http.get(listed)).json()["data"]]
        assert len(whole) == count
        for order, rows in (("desc", whole), ("asc", whole[::-1])):
            first = (await http.get(listed, params={"order": order, "limit": 1})).json()
            assert first["has_more"] and [each["id"] for each in first["data"]] == rows[:1]
            rest = await http.get(listed, params={"order": order, "limit": count - 1, "after": first["last_id"]})
            assert [each["id"] for each in rest.json()["data"]] == rows[1:] and not rest.json()["has_more"]
        for unknown in ("x", "a\0"):
            assert (await http.get(listed, params={"after": unknown})).status_code == 400
        before = await http.get(listed, params={"before": whole[-1]})
        assert before.headers["warning"] == '299 - "Parameters were ignored: before"'
    for listed in (f"{path}/files", in_batch):
        assert (await http.get(listed, params={"filter": "cancelled"})).json()["data"] == []
        assert (await http.get(listed, params={"filter": "lost"})).json()["error"]["param"] == "filter"
    elsewhere = (await http.get(f"{path}/files", params={"limit": 1})).json()["last_id"]
    wrong = await http.get(in_batch, params={"after": elsewhere})
    assert wrong.json()["error"]["param"] == "after", "it is in the store, and not in the batch"


@pytest.mark.parametrize(
    "refused",
    [
        {"text": "Open sesame."},
        {"text": "a", "attributes": {"a" * 65: 1}},
        {"text": "a", "chunking_strategy": {"type": "static", "static": STRANGE_CHUNKS}},
    ],
    ids=["filter", "attributes", "chunks"],
)
async def test_a_batch_that_is_refused_adds_nothing(
    client: openai.AsyncOpenAI, http: httpx.AsyncClient, refused: dict[str, Any]
) -> None:
    """Documents before the refused one stayed in the store, in a batch whose id nobody was told."""
    store = (await client.vector_stores.create(name="x")).id
    old, new = await uploaded(client, "old", b"An old one."), await uploaded(client, "new", b"A new one.")
    await client.vector_stores.files.create(store, file_id=old)
    files = [{"text": "A text."}, {"file_id": old}, {"file_id": new}, refused]
    answer = await http.post(f"/v1/vector_stores/{store}/file_batches", json={"files": files})
    assert answer.status_code == 400, answer.text
    listed = (await http.get(f"/v1/vector_stores/{store}/files")).json()["data"]
    assert [file["id"] for file in listed] == [old]


async def test_a_batch_with_a_file_that_is_not_there_takes_no_document_from_another_batch(
    client: openai.AsyncOpenAI, http: httpx.AsyncClient
) -> None:
    store, old = (await client.vector_stores.create(name="x")).id, await uploaded(client, "old", b"An old one.")
    first = await client.vector_stores.file_batches.create(store, file_ids=[old])
    with pytest.raises(openai.NotFoundError):
        await client.vector_stores.file_batches.create(store, file_ids=[old, "file-none"])
    listed = (await http.get(f"/v1/vector_stores/{store}/file_batches/{first.id}/files")).json()["data"]
    assert [file["id"] for file in listed] == [old]


async def test_a_batch_leaves_a_document_alone_that_the_store_has_with_the_same_chunks(
    client: openai.AsyncOpenAI, http: httpx.AsyncClient, retrieval: Retrieval
) -> None:
    file = await uploaded(client, "fox.md", FOX.encode())
    store = (await client.vector_stores.create(file_ids=[file])).id
    await ended(http, f"/v1/vector_stores/{store}/files/{file}")
    assert isinstance(retrieval.embedder, MadeUpEmbedder)
    retrieval.embedder.away = True
    same = await client.vector_stores.file_batches.create(store, file_ids=[file])
    assert (same.status, same.file_counts.completed) == ("completed", 1), "nothing is read again"
    retrieval.embedder.away = False
    how: Any = {"type": "static", "static": {"max_chunk_size_tokens": 32, "chunk_overlap_tokens": 4}}
    other = await client.vector_stores.file_batches.create(store, file_ids=[file], chunking_strategy=how)
    await ended(http, f"/v1/vector_stores/{store}/file_batches/{other.id}")
    shown = await client.vector_stores.files.retrieve(file, vector_store_id=store)
    assert shown.chunking_strategy is not None and shown.chunking_strategy.model_dump() == how


async def test_an_erased_users_files_are_in_no_store_of_the_tenant(
    client: openai.AsyncOpenAI, http: httpx.AsyncClient, server: Serving
) -> None:
    file = await uploaded(client, "fox.md", FOX.encode())
    store = (await client.vector_stores.create(file_ids=[file])).id
    await ended(http, f"/v1/vector_stores/{store}/files/{file}")
    server.journal.database.query("UPDATE files SET end_user = 'ann'")
    erased = await http.post("/v1/users/ann/erase")
    assert erased.status_code in (200, 202), erased.text
    assert (await client.vector_stores.search(store, query="interest rates")).data == []
    assert (await client.vector_stores.files.list(store)).data == []


async def test_a_deleted_file_is_in_no_store_and_in_no_later_prompt(
    client: openai.AsyncOpenAI, http: httpx.AsyncClient, server: Serving
) -> None:
    file = await uploaded(client, "fox.md", FOX.encode())
    stores = [(await client.vector_stores.create(file_ids=[file])).id for _ in range(2)]
    for store in stores:
        await ended(http, f"/v1/vector_stores/{store}/files/{file}")
        assert (await client.vector_stores.search(store, query="interest rates")).data
    await client.files.delete(file)
    for store in stores:
        assert (await client.vector_stores.search(store, query="interest rates")).data == []
        assert (await client.vector_stores.files.list(store)).data == []
    server.engine.script += [CALL, "Nothing."]
    done = await client.responses.create(model=SIMULATED, input="what of the rates?", tools=[FILE_SEARCH])
    (item,) = [each for each in done.output if each.type == "function_call_output"]
    assert json.loads(str(item.output)) == {"results": []}


def file_search(store: str, **more: Any) -> Any:
    return {"type": "file_search", "vector_store_ids": [store], **more}


async def test_openais_file_search_searches_the_named_stores_and_its_item_has_what_was_found(
    client: openai.AsyncOpenAI, http: httpx.AsyncClient, server: Serving, retrieval: Retrieval
) -> None:
    first, second = [(await client.vector_stores.create()).id for _ in range(2)]
    await read_in(http, first, text="Interest rates fell in March.", filename="march.md", attributes={"year": 2020})
    await read_in(http, second, text="Interest rates rose in May.", filename="may.md")
    server.engine.script += [CALL, "They fell [1]."]
    tool = file_search(first, max_num_results=3)
    done = await client.responses.create(model=SIMULATED, input="what of the rates?", tools=[tool])
    assert [item.type for item in done.output] == ["message", "file_search_call", "message"]
    found = done.output[1]
    assert isinstance(found, ResponseFileSearchToolCall)
    assert (found.status, found.queries) == ("completed", ["interest rates"])
    shown: dict[str, Any] = found.model_dump()
    assert json.loads(shown["arguments"]) == {"query": "interest rates"}
    assert shown["results"][0]["attributes"] == {"year": 2020}
    assert [result.filename for result in found.results or ()] == ["march.md"]
    assert done.tools[0].model_dump(exclude_none=True) == tool and done.output_text.endswith("They fell [1].")
    assert (await client.responses.retrieve(done.id)).model_dump() == done.model_dump()
    text: Any = done.output[2].model_dump()["content"][0]
    (cited,) = text["annotations"]
    assert (cited["type"], cited["filename"]) == ("file_citation", "march.md")
    assert text["text"][cited["index"] :] == "[1]."
    assert "Interest rates fell in March."[cited["start"] : cited["end"]] == shown["results"][0]["text"]

    again: Any = await client.responses.retrieve(done.id, stream=True, starting_after=10_000)
    assert [event.type async for event in again] == ["response.completed"]

    server.engine.script.append("In March.")
    sent_back: Any = [*(item.model_dump() for item in done.output), {"role": "user", "content": "when?"}]
    after = await client.responses.with_raw_response.create(model=SIMULATED, input=sent_back, tools=[tool])
    assert after.parse().output_text == "In March." and "warning" not in after.headers
    assert "Interest rates fell in March." in decode(server.engine.prompts[-1])

    server.engine.script += [CALL, "Nothing."]
    only = {"type": "eq", "key": "year", "value": 2021}
    none = await client.responses.create(
        model=SIMULATED, input="and then?", tools=[file_search(first, filters=only)], previous_response_id=done.id
    )
    empty = none.output[1]
    assert isinstance(empty, ResponseFileSearchToolCall) and empty.results == []

    assert isinstance(retrieval.embedder, MadeUpEmbedder)
    retrieval.embedder.away = True
    server.engine.script += [CALL, "By words [1], not [2]."]
    stream = await client.responses.create(
        model=SIMULATED, input="again", tools=[tool], stream=True, include=["file_search_call.results"]
    )
    events = [event async for event in stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    (added,) = [event for event in events if event.type == "response.output_text.annotation.added"]
    ended = [event for event in events if event.type == "response.output_text.done"][-1]
    assert events.index(added) == events.index(ended) - 1 and added.item_id == ended.item_id
    annotated = [event.item for event in events if event.type == "response.output_item.done"][-1]
    assert annotated.model_dump()["content"][0]["annotations"] == [added.model_dump()["annotation"]]
    assert events[-1].type == "response.completed" and events[-1].response.output[-1] == annotated
    kinds = [event.type.rpartition(".")[2] for event in events if "file_search" in event.type]
    assert kinds == ["in_progress", "searching", "completed"]
    (item,) = [each.item for each in events if each.type == "response.output_item.done" and each.output_index == 1]
    shown = item.model_dump()
    assert (shown["skipped"], shown["reasons"]) == (["retrieval_skipped", "embedding"], {"embedding": "failed"})


async def test_a_repeated_request_gets_its_answer_though_its_store_was_deleted(
    client: openai.AsyncOpenAI, http: httpx.AsyncClient, server: Serving
) -> None:
    store = (await client.vector_stores.create()).id
    server.engine.script.append("They fell.")
    body = {"model": SIMULATED, "input": "what of the rates?", "tools": [file_search(store)]}
    key = {"idempotency-key": "one"}
    first = await http.post("/v1/responses", json=body, headers=key)
    assert first.status_code == 200, first.text
    await client.vector_stores.delete(store)
    again = await http.post("/v1/responses", json=body, headers=key)
    assert (again.status_code, again.json()["id"]) == (200, first.json()["id"]), again.text
    assert (await http.post("/v1/responses", json=body)).status_code == 404


async def test_what_is_wrong_with_a_file_search_is_refused_by_its_name(
    client: openai.AsyncOpenAI, http: httpx.AsyncClient
) -> None:
    store = (await client.vector_stores.create()).id
    for tool, status, param in (
        (file_search("vs_none"), 404, "tools[0].vector_store_ids"),
        (file_search(store, filters={"type": "like"}), 400, "tools[0].filters"),
        ({"type": "file_search"}, 400, "tools[0].vector_store_ids"),
    ):
        answer = await http.post("/v1/responses", json={"model": SIMULATED, "input": "hello", "tools": [tool]})
        assert (answer.status_code, answer.json()["error"]["param"]) == (status, param), answer.text
