"""Answers use documents (`knowledge`) and memories of their users."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import httpx
import pytest
from sessile_client import Client

from inference.simulated import SimulatedOptions, decode
from sessions.model.events import SessionCreated
from sessions.model.memories import HEADING
from sessions.model.types import ALL_SCOPES, Principal, SessionId, SessionKey, TenantId
from sessions.retrieval.scoped_search import ScopedSearch
from sessions.retrieval.search import Deadlines
from sessions.retrieval.services import Retrieval
from sessions.retrieval.vector_stores import DocumentId, StoreFile, StoreId
from sessions.turn.keyword_filter import KeywordFilterSet
from testbed.wire_client import WireClient, connected
from tests.support.doors.assembly import Assembly, assembled, wall_ms
from tests.support.doors.openai_server import SIMULATED, ScriptedEngine, Serving, serving
from tests.support.engines.made_up_embedder import MadeUpEmbedder, made_up_retrieval
from transport.auth.authenticator import key_digest
from transport.grpc_api import sessile_pb2 as pb
from transport.grpc_api.server import GrpcServer
from transport.grpc_api.sessile_pb2_grpc import SessionsStub

TENANT = TenantId("acme")
ANN = Principal(tenant=TENANT, key_id="ann", user="ann")
BEN = Principal(tenant=TENANT, key_id="ben", user="ben")
SERVICE = Principal(tenant=TENANT, key_id="s", role="service", scopes=ALL_SCOPES)
KEYS = {key_digest(f"of-{name}"): who for name, who in (("ann", ANN), ("ben", BEN), ("service", SERVICE))}
RATES = "The central bank raised its interest rates in March."
FOX = "The quick fox jumps over the lazy dog."


class World:
    """A server with vector stores, and clients of it."""

    def __init__(self, serving: Serving, http: httpx.AsyncClient, retrieval: Retrieval) -> None:
        self.serving = serving
        self.http = http
        self.retrieval = retrieval
        self.ws = serving.server.url.replace("http", "ws") + "/v1/ws"

    async def store(self, *texts: str, of: str = "ann", **document: Any) -> str:
        """Makes a store with these texts as its documents."""
        headers = {"authorization": f"Bearer of-{of}"}
        made = await self.http.post("/v1/vector_stores", json={}, headers=headers)
        store = str(made.json()["id"])
        for number, text in enumerate(texts):
            body = {"text": text, "filename": f"{number}.md", **document}
            added = await self.http.post(f"/v1/vector_stores/{store}/files", json=body, headers=headers)
            assert added.status_code == 200, added.text
            await self.read_in(f"/v1/vector_stores/{store}/files/{added.json()['id']}", headers)
        return store

    async def put(self, store: str, text: str) -> None:
        """Puts a document into a store past the filters of documents."""
        stores = self.retrieval.vector_stores
        assert stores is not None
        file = StoreFile(
            id=DocumentId("past"), store=StoreId(store), tenant=TENANT, filename="past.md", created_at=wall_ms()
        )
        await stores.passages.add_file(file, text)
        await self.read_in(f"/v1/vector_stores/{store}/files/past", {"authorization": "Bearer of-ann"})

    async def read_in(self, path: str, headers: dict[str, str]) -> None:
        async with asyncio.timeout(60):
            while (await self.http.get(path, headers=headers)).json()["status"] == "in_progress":
                pass

    @property
    def embedder(self) -> MadeUpEmbedder:
        assert isinstance(self.retrieval.embedder, MadeUpEmbedder)
        return self.retrieval.embedder

    @property
    def prompt(self) -> str:
        """The newest prompt."""
        return decode(self.serving.engine.prompts[-1])


@asynccontextmanager
async def serving_knowledge(options: SimulatedOptions) -> AsyncIterator[World]:
    """Runs a server with vector stores and a model with these options."""
    async with made_up_retrieval(wall_ms) as retrieval:
        stores = retrieval.vector_stores
        assert stores is not None
        async with (
            serving(
                options,
                keys=KEYS,
                knowledge=ScopedSearch(stores.passages, stores.search, Deadlines()),
                filters=KeywordFilterSet(input_phrases=["sesame"]),
                retrieval=retrieval,
            ) as server,
            httpx.AsyncClient(base_url=server.server.url, timeout=60) as http,
        ):
            yield World(server, http, retrieval)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with serving_knowledge(SimulatedOptions(step_base_s=0.001)) as made:
        yield made


@pytest.fixture
async def wire(world: World) -> AsyncIterator[WireClient]:
    async with connected(world.ws, auth="of-ann") as made:
        yield made


async def answered(wire: WireClient, kind: str, **fields: Any) -> list[dict[str, Any]]:
    """Sends a command that begins an answer; returns the events up to its end."""
    ok = await wire.command(kind, **fields)
    return [frame["event"] for frame in await wire.until_end(ok["response_id"])]


def message_of(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the newest message that a client sent."""
    items = [event["item"] for event in events if event["type"] == "item.created"]
    return next(item for item in reversed(items) if item.get("role") == "user")


def passages_of(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [part for part in message_of(events)["content"] if part["type"] == "input_passage"]


def skipped_of(events: list[dict[str, Any]]) -> Any:
    return events[-1]["response"].get("service", {}).get("retrieval_skipped")


async def test_what_a_turn_names_stands_in_front_of_its_message_and_in_every_later_prompt(
    world: World, wire: WireClient
) -> None:
    store = await world.store(RATES, FOX)
    session = await wire.create()
    knowledge = {"vector_store_ids": [store], "results_max": 1}
    world.serving.engine.script += ["They were raised [1].", "You are welcome."]
    question = "What of the interest rates?"
    events = await answered(wire, "message.create", session=session, content=question, knowledge=knowledge)
    passage, words = message_of(events)["content"]
    assert words == {"type": "input_text", "text": question}
    assert (passage["type"], passage["number"], passage["filename"]) == ("input_passage", 1, "0.md")
    assert RATES[passage["start"] : passage["end"]] == RATES and passage["file_id"] and passage["score"] > 0
    assert passage["text"] == f"[Passage of 0.md, to be cited as [1]]\n{RATES}\n[End of passage]\n"
    assert passage["text"] + question in world.prompt and FOX not in world.prompt
    assert skipped_of(events) is None

    first = list(world.serving.engine.prompts[-1])
    events = await answered(wire, "message.create", session=session, content="Thank you.")
    assert passages_of(events) == []
    assert list(world.serving.engine.prompts[-1][: len(first)]) == first, "what was computed stays"
    assert world.prompt.count(RATES) == 1


async def test_a_sessions_knowledge_is_searched_for_each_turn_until_it_is_cleared(
    world: World, wire: WireClient
) -> None:
    store = await world.store(RATES, FOX)
    session = await wire.create(knowledge={"vector_store_ids": [store], "results_max": 1})
    state = (await wire.command("session.get", session=session))["state"]
    assert state["knowledge"] == {"vector_store_ids": [store], "results_max": 1, "filters": None, "score_min": 0.0}
    events = await answered(wire, "message.create", session=session, content="Who jumps over the dog?")
    assert [FOX in passage["text"] for passage in passages_of(events)] == [True]
    question = message_of(events)["id"]
    off = await answered(wire, "message.create", session=session, content="Who jumps over the fox?", knowledge=None)
    assert passages_of(off) == []
    edited = await answered(
        wire, "message.edit", session=session, item_id=question, content="What of the interest rates?"
    )
    assert [RATES in passage["text"] for passage in passages_of(edited)] == [True], "the new words are searched for"
    assert FOX not in world.prompt
    before = world.prompt
    embedded = len(world.embedder.embedded)
    again = await answered(wire, "response.create", session=session, parent_id=message_of(edited)["id"])
    assert again[-1]["type"] == "response.completed" and world.prompt == before
    assert len(world.embedder.embedded) == embedded, "another answer keeps what stands there"
    await wire.command("session.update", session=session, knowledge=None)
    events = await answered(wire, "message.create", session=session, content="And the dog?")
    assert passages_of(events) == []


async def test_a_repeated_command_searches_nothing_again(world: World, wire: WireClient) -> None:
    store = await world.store(FOX)
    session = await wire.create(knowledge={"vector_store_ids": [store]})
    fields: dict[str, Any] = {"id": "01REPEATED", "session": session, "content": "A fox?"}
    await answered(wire, "message.create", **fields)
    embedded = len(world.embedder.embedded)
    await wire.command("message.create", **fields)
    assert len(world.embedder.embedded) == embedded


async def test_a_store_that_its_principal_may_not_name_is_refused_before_anything_is_written(
    world: World, wire: WireClient
) -> None:
    other, own = await world.store(FOX, of="ben"), await world.store(FOX)
    session = await wire.create()
    before = len(world.serving.log(session))
    for name in (other, "vs_none"):
        knowledge = {"vector_store_ids": [own, name]}
        for kind, fields in (
            ("session.create", {}),
            ("session.update", {"session": session}),
            ("message.create", {"session": session, "content": "fox?"}),
            ("message.create", {"session": session, "content": ""}),
        ):
            with pytest.raises(RuntimeError, match=r"knowledge\.vector_store_ids") as refused:
                await wire.command(kind, knowledge=knowledge, **fields)
            assert "vector_store_not_found" in str(refused.value)
    for wrong, param in (
        ({"vector_store_ids": [own], "filters": {"type": "like"}}, "knowledge.filters"),
        ({"vector_store_ids": []}, "knowledge.vector_store_ids"),
    ):
        with pytest.raises(RuntimeError, match=param):
            await wire.command("message.create", session=session, content="fox?", knowledge=wrong)
    for more in ({"respond": False}, {"role": "system"}):
        with pytest.raises(RuntimeError, match="'param': 'knowledge'"):
            knowledge = {"vector_store_ids": [own]}
            await wire.command("message.create", session=session, content="fox?", knowledge=knowledge, **more)
    assert len(world.serving.log(session)) == before


async def test_a_service_names_the_tenants_stores_for_a_users_session(world: World, wire: WireClient) -> None:
    store = await world.store(FOX, of="service")
    session = await wire.create()
    async with connected(world.ws, auth="of-service") as service:
        await service.command("session.update", session=session, knowledge={"vector_store_ids": [store]})
    events = await answered(wire, "message.create", session=session, content="A fox?")
    assert [FOX in passage["text"] for passage in passages_of(events)] == [True]


async def test_failures_of_a_search_leave_passages_out_and_the_response_says_so(
    world: World, wire: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, gone = await world.store(FOX), await world.store(FOX)
    await world.put(store, "Open sesame, fox.")
    session = await wire.create(knowledge={"vector_store_ids": [store, gone]})
    ask: dict[str, Any] = {"session": session, "content": "A fox?"}
    events = await answered(wire, "message.create", **ask)
    assert [FOX in each["text"] for each in passages_of(events)] == [True, True]
    assert skipped_of(events) == {"passages": "refused"}
    assert "sesame" not in world.prompt
    assert world.serving.runtime.metrics.verdicts.values == {("input", "block", "keyword"): 1}

    await world.http.delete(f"/v1/vector_stores/{gone}", headers={"authorization": "Bearer of-ann"})
    world.embedder.away = True
    events = await answered(wire, "message.create", **ask)
    assert passages_of(events) and skipped_of(events)["vectors"] == "missing"
    assert skipped_of(events)["embedding"] == "failed"

    async def stalled(*_: object) -> list[object]:
        raise TimeoutError

    assert world.retrieval.vector_stores is not None
    monkeypatch.setattr(world.retrieval.vector_stores.passages, "stores_of_ids", stalled)
    events = await answered(wire, "message.create", **ask, knowledge={"vector_store_ids": [store]})
    assert passages_of(events) == [] and skipped_of(events) == {"vectors": "late"}
    assert events[-1]["type"] == "response.completed"


async def test_a_deleted_document_is_in_no_later_prompt(world: World, wire: WireClient) -> None:
    store = await world.store(RATES, FOX)
    session = await wire.create(knowledge={"vector_store_ids": [store]})
    events = await answered(wire, "message.create", session=session, content="A fox, and interest rates?")
    (deleted,) = [passage for passage in passages_of(events) if FOX in passage["text"]]
    headers = {"authorization": "Bearer of-ann"}
    path = f"/v1/vector_stores/{store}/files/{deleted['file_id']}"
    assert (await world.http.delete(path, headers=headers)).json()["deleted"]
    events = await answered(wire, "message.create", session=session, content="And now, what of the fox?")
    assert FOX not in world.prompt and world.prompt.count(RATES) == 2
    (retracted,) = [event for event in events if event["type"] == "content.retracted"]
    assert retracted["category"] == "document_deleted" and retracted["replacement"] == ""
    items = (await wire.command("session.get", session=session))["state"]["items"]
    assert [
        part["text"] for item in items for part in item["content"] if part.get("file_id") == deleted["file_id"]
    ] == [""]
    events = await answered(wire, "message.create", session=session, content="Well?")
    assert all(event["type"] != "content.retracted" for event in events), "it is taken out once"


async def test_a_document_deleted_during_a_turn_is_in_no_prompt_that_goes_on_with_it(
    world: World, wire: WireClient
) -> None:
    tools = [{"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}]
    store = await world.store(RATES)
    session = await wire.create(knowledge={"vector_store_ids": [store]}, tools=tools)
    world.serving.engine.script += ['<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>', "Sunny."]
    events = await answered(wire, "message.create", session=session, content="What of the interest rates?")
    call = next(event["item"]["call_id"] for event in events if event.get("item", {}).get("type") == "function_call")
    assert RATES in world.prompt
    await world.http.delete(f"/v1/vector_stores/{store}", headers={"authorization": "Bearer of-ann"})
    events = await answered(wire, "tool.output", session=session, call_id=call, output="sunny")
    assert "sunny" in world.prompt and RATES not in world.prompt
    assert [event["category"] for event in events if event["type"] == "content.retracted"] == ["document_deleted"]


async def test_a_document_deleted_while_a_message_waits_is_not_in_its_prompt(world: World, wire: WireClient) -> None:
    store = await world.store(RATES, FOX)
    tools = [{"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}]
    session = await wire.create(knowledge={"vector_store_ids": [store], "results_max": 1}, tools=tools)
    await answered(wire, "message.create", session=session, content="What of the interest rates?")
    world.serving.engine.script += ['<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>', "It jumps."]
    turn = await wire.command("message.create", session=session, content="The weather?", knowledge=None)
    await wire.until_end(turn["response_id"])
    queued = await wire.command("message.create", session=session, content="Who jumps?", queue=True)
    await world.http.delete(f"/v1/vector_stores/{store}", headers={"authorization": "Bearer of-ann"})
    await wire.command("response.cancel", session=session, response_id=turn["response_id"])
    await wire.until_end(queued["response_id"])
    assert "Who jumps?" in world.prompt and RATES not in world.prompt and FOX not in world.prompt


async def test_a_queued_message_waits_with_its_passages(world: World, wire: WireClient) -> None:
    store = await world.store(FOX)
    session = await wire.create(knowledge={"vector_store_ids": [store]})
    first = await wire.command("message.create", session=session, content="A fox?")
    second = await wire.command("message.create", session=session, content="Another fox?", queue=True)
    events = [frame["event"] for frame in await wire.until_end(second["response_id"])]
    assert first["response_id"] != second["response_id"]
    assert message_of(events)["content"][-1]["text"] == "Another fox?" and len(passages_of(events)) == 1
    assert world.prompt.count(FOX) == 2


async def test_what_people_read_and_search_has_their_words_alone(world: World, wire: WireClient) -> None:
    store = await world.store(FOX)
    session = await wire.create(knowledge={"vector_store_ids": [store]})
    await answered(wire, "message.create", session=session, content="Who jumps?")
    headers = {"authorization": "Bearer of-ann"}
    shared = (await world.http.post(f"/v1/sessions/{session}/shares", json={}, headers=headers)).json()
    page = await world.http.get(f"/v1/shares/{shared['token']}")
    assert page.json()["messages"][0]["text"] == "Who jumps?" and "lazy" not in page.text
    assert (await wire.command("session.search", q="lazy"))["data"] == []
    assert len((await wire.command("session.search", q="jumps"))["data"]) == 1
    markdown = await world.http.get(f"/v1/sessions/{session}/export?format=markdown", headers=headers)
    assert "Who jumps?" in markdown.text and "lazy" not in markdown.text
    listed = (await world.http.get(f"/v1/conversations/{session}/items", headers=headers)).json()["data"]
    (message,) = [item for item in listed if item["role"] == "user"]
    assert message["content"] == [{"type": "input_text", "text": "Who jumps?"}]


async def test_a_turn_over_openais_api_has_its_sessions_knowledge(world: World, wire: WireClient) -> None:
    store = await world.store(FOX)
    session = await wire.create(knowledge={"vector_store_ids": [store]})
    headers = {"authorization": "Bearer of-ann"}
    body = {"model": SIMULATED, "conversation": session, "input": "Who jumps?"}
    done = (await world.http.post("/v1/responses", json=body, headers=headers)).json()
    assert done["status"] == "completed" and FOX in world.prompt and "retrieval_skipped" not in done
    world.embedder.away = True
    done = (await world.http.post("/v1/responses", json=body, headers=headers)).json()
    assert done["status"] == "completed" and done["retrieval_skipped"] == {"embedding": "failed"}


async def test_passages_that_do_not_fit_beside_the_turn_are_left_out() -> None:
    options = SimulatedOptions(step_base_s=0.001, context_window=2_000)
    headers = {"authorization": "Bearer of-ann"}
    async with serving_knowledge(options) as world, connected(world.ws, auth="of-ann") as wire:
        world.serving.engine.script += ["Ok."] * 6
        store = await world.store(*[f"Fox number {number} jumps over the fence. " * 6 for number in range(5)])
        session = await wire.create(knowledge={"vector_store_ids": [store]})
        body = {"model": SIMULATED, "conversation": session, "input": "fox " * 345, "max_output_tokens": 8}
        done = (await world.http.post("/v1/responses", json=body, headers=headers)).json()
        assert done["status"] == "completed" and done["retrieval_skipped"] == {"passages": "too_long"}

        session = await wire.create(knowledge={"vector_store_ids": [store]})
        events = await answered(wire, "message.create", session=session, content="fox " * 320)
        assert events[-1]["type"] == "response.completed"
        assert passages_of(events) == [] and skipped_of(events) == {"passages": "too_long"}

        session = await wire.create(knowledge={"vector_store_ids": [store]})
        long = "The weather. " * 60
        await answered(wire, "message.create", session=session, content=long, knowledge=None, max_output_tokens=8)
        events = await answered(wire, "message.create", session=session, content="A fox?" * 100, max_output_tokens=8)
        assert skipped_of(events) == {"passages": "too_long"} and long in world.prompt, "no older turn makes room"
        short: dict[str, Any] = {"session": session, "max_output_tokens": 8}
        events = await answered(wire, "message.create", content="A?", knowledge=None, **short)
        edited = message_of(events)["id"]
        events = await answered(wire, "message.edit", item_id=edited, content="Fox!" * 80, **short)
        assert skipped_of(events) == {"passages": "too_long"} and long in world.prompt


async def test_the_python_client_names_knowledge_and_shows_passages_apart_from_words(world: World) -> None:
    store = await world.store(FOX)
    async with Client(world.ws, api_key="of-ann") as client:
        session = await client.create_session()
        answer = session.send("Who jumps?", knowledge={"vector_store_ids": [store]})
        assert (await answer.wait()).status == "completed"
        question = session.view.branch()[0]
        assert question.text == "Who jumps?"
        (passage,) = question.passages
        assert (passage["number"], passage["filename"]) == (1, "0.md") and FOX in passage["text"]
        await session.update(knowledge={"vector_store_ids": [store]})
        edited = session.edit(question.id, "Who is lazy?", knowledge=None)
        assert (await edited.wait()).status == "completed"
        assert session.view.branch()[0].passages == []
        assert (await session.get())["state"]["knowledge"]["vector_store_ids"] == [store]


async def test_knowledge_over_grpc(world: World) -> None:
    store = await world.store(FOX)
    door = GrpcServer(world.serving.gateway, host="127.0.0.1", port=0)
    assert await door.start()
    metadata = (("authorization", "Bearer of-ann"),)
    scope = pb.SearchScope(vector_store_ids=[store], results_max=2)
    try:
        async with grpc.aio.insecure_channel(door.address) as channel:
            stub: Any = SessionsStub(channel)
            session = (await stub.Create(pb.SessionCreate(id="a", knowledge=scope), metadata=metadata)).session
            for id, more in (("b", {}), ("c", {"no_knowledge": True}), ("d", {"knowledge": scope})):
                await stub.Send(
                    pb.MessageCreate(id=id, session=session, content="Who?", queue=True, **more), metadata=metadata
                )
            await world.serving.ended(session, TENANT)
            await stub.Update(pb.SessionUpdate(id="e", session=session, clear=["knowledge"]), metadata=metadata)
            state = await stub.Get(pb.GetRequest(session=session), metadata=metadata)
            asked = [item for item in state.items if item.role == "user"]
            assert [[part.type for part in item.content] for item in asked] == [
                ["input_passage", "input_text"],
                ["input_text"],
                ["input_passage", "input_text"],
            ]
            passage = asked[0].content[0]
            assert (passage.number, passage.start, passage.end, passage.filename) == (1, 0, len(FOX), "0.md")
            assert FOX in passage.text and not state.HasField("knowledge")
            with pytest.raises(grpc.aio.AioRpcError, match="no_knowledge"):
                both = pb.MessageCreate(id="f", session=session, content="x", no_knowledge=True, knowledge=scope)
                await stub.Send(both, metadata=metadata)
    finally:
        await door.stop()


ACME = Principal(tenant=TenantId("acme"), key_id="k", role="service", scopes=ALL_SCOPES)
BETA = Principal(tenant=TenantId("beta"), key_id="k2", role="service", scopes=ALL_SCOPES)
MEMORIES_KEYS = {key_digest("s3cret-of-acme"): ACME, key_digest("s3cret-of-beta"): BETA}
ANA = {"authorization": "Bearer s3cret-of-acme", "x-sessile-user": "ana"}
MEMORIES_BEN = {"authorization": "Bearer s3cret-of-acme", "x-sessile-user": "ben"}
ON = "[tenants.acme]\nmemories = true\n"


class MemoriesWorld:
    def __init__(self, server: Assembly, engine: ScriptedEngine, http: httpx.AsyncClient) -> None:
        self.server, self.engine, self.http = server, engine, http

    async def remember(self, text: str, headers: dict[str, str] = ANA) -> dict[str, Any]:
        made = await self.http.post("/v1/memories", json={"text": text}, headers=headers)
        assert made.status_code == 201, made.text
        return made.json()  # type: ignore[no-any-return]

    async def texts(self, headers: dict[str, str] = ANA) -> list[str]:
        answer = await self.http.get("/v1/memories", headers=headers)
        return [each["text"] for each in answer.json()["data"]]

    async def conversation(self, headers: dict[str, str] = ANA) -> str:
        made = await self.http.post("/v1/conversations", json={}, headers=headers)
        assert made.status_code == 200, made.text
        return str(made.json()["id"])

    async def prompt(self, conversation: str, headers: dict[str, str] = ANA) -> str:
        """Returns the prompt that the model gets for one more question."""
        body = {"model": "simulated", "input": "Hello.", "conversation": conversation, "max_output_tokens": 16}
        answer = await self.http.post("/v1/responses", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        return decode(self.engine.prompts[-1])

    async def written(self, conversation: str) -> Any:
        key = SessionKey(TenantId("acme"), SessionId(conversation))
        page = await self.server.journal.read(key, after=0, limit=1, bytes_max=1 << 20)
        assert page is not None and isinstance(page.records[0].event, SessionCreated)
        return page.records[0].event.info.memories


@pytest.fixture
async def world_of_memories(tmp_path: Path) -> AsyncIterator[MemoriesWorld]:
    limits = tmp_path / "limits.toml"
    limits.write_text(ON)
    engine = ScriptedEngine(SimulatedOptions(step_base_s=0.001, answer_tokens_mean=8))
    filters = KeywordFilterSet(input_phrases=["nightjar"])
    async with (
        assembled(limits_file=limits, engine=engine, keys=MEMORIES_KEYS, filters=filters) as server,
        httpx.AsyncClient(base_url=server.server.url, timeout=60) as http,
    ):
        yield MemoriesWorld(server, engine, http)


async def test_a_later_conversation_begins_with_them_and_keeps_them_as_they_were(
    world_of_memories: MemoriesWorld,
) -> None:
    cat = await world_of_memories.remember("My cat is called Io.")
    await world_of_memories.remember("I live in Ghent.")
    first = await world_of_memories.conversation()
    assert await world_of_memories.written(first) == ("My cat is called Io.", "I live in Ghent.")
    begin = f"{HEADING}\n- My cat is called Io.\n- I live in Ghent."
    assert begin in await world_of_memories.prompt(first)
    changed = await world_of_memories.http.patch(
        f"/v1/memories/{cat['id']}", json={"text": "My dog is called Io."}, headers=ANA
    )
    assert changed.json()["text"] == "My dog is called Io." and changed.json()["created_at"] == cat["created_at"]
    assert begin in await world_of_memories.prompt(first), "its prompt begins as it did"
    second = await world_of_memories.conversation()
    assert "My dog is called Io." in await world_of_memories.prompt(second)
    assert (await world_of_memories.http.delete(f"/v1/memories/{cat['id']}", headers=ANA)).status_code == 204
    assert await world_of_memories.texts() == ["I live in Ghent."]


async def test_they_are_their_users_alone(world_of_memories: MemoriesWorld) -> None:
    mine = await world_of_memories.remember("My cat is called Io.")
    assert await world_of_memories.texts(MEMORIES_BEN) == []
    assert HEADING not in await world_of_memories.prompt(
        await world_of_memories.conversation(MEMORIES_BEN), MEMORIES_BEN
    )
    for call in (
        world_of_memories.http.patch(f"/v1/memories/{mine['id']}", json={"text": "taken"}, headers=MEMORIES_BEN),
        world_of_memories.http.delete(f"/v1/memories/{mine['id']}", headers=MEMORIES_BEN),
    ):
        answer = await call
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "memory_not_found")
    beta = {"authorization": "Bearer s3cret-of-beta", "x-sessile-user": "ana"}
    assert await world_of_memories.texts(beta) == []
    off = await world_of_memories.http.post("/v1/memories", json={"text": "x"}, headers=beta)
    assert (off.status_code, off.json()["error"]["code"]) == (403, "memories_disabled")
    nobody = await world_of_memories.http.get("/v1/memories", headers={"authorization": "Bearer s3cret-of-acme"})
    assert (nobody.status_code, nobody.json()["error"]["code"]) == (400, "user_required")


async def test_filters_read_them_like_a_users_words(world_of_memories: MemoriesWorld) -> None:
    refused = await world_of_memories.http.post("/v1/memories", json={"text": "Call me Nightjar."}, headers=ANA)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "content_filter")
    assert await world_of_memories.texts() == []
    for text in ("", "x" * 281):
        assert (await world_of_memories.http.post("/v1/memories", json={"text": text}, headers=ANA)).status_code == 400


async def test_what_filters_refuse_by_now_is_left_out(tmp_path: Path) -> None:
    limits = tmp_path / "limits.toml"
    limits.write_text(ON)
    engine = ScriptedEngine(SimulatedOptions(step_base_s=0.001, answer_tokens_mean=8))
    filters = KeywordFilterSet()
    async with (
        assembled(limits_file=limits, engine=engine, keys=MEMORIES_KEYS, filters=filters) as server,
        httpx.AsyncClient(base_url=server.server.url, timeout=60) as http,
    ):
        world_of_memories = MemoriesWorld(server, engine, http)
        await world_of_memories.remember("Call me Nightjar.")
        await world_of_memories.remember("I live in Ghent.")
        filters._input = KeywordFilterSet(input_phrases=["nightjar"])._input
        assert await world_of_memories.written(await world_of_memories.conversation()) == ("I live in Ghent.",)


async def test_they_are_exported_and_erased_with_their_user(world_of_memories: MemoriesWorld) -> None:
    await world_of_memories.remember("My cat is called Io.")
    admin = {"authorization": "Bearer s3cret-of-acme"}
    export = await world_of_memories.http.get("/v1/users/ana/export", headers=admin)
    assert "My cat is called Io." in export.text
    assert (await world_of_memories.http.post("/v1/users/ana/erase", headers=admin)).status_code == 200
    assert await world_of_memories.texts() == []
