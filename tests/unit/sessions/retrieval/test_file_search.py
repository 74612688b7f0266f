"""The tool `file_search`: whose documents, how much of them, and an answer that goes on without."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
import pytest

from sessions.metrics import Metrics
from sessions.model.errors import NotFound, Unavailable
from sessions.model.generation import RETRIEVAL_SKIPPED as SKIPPED
from sessions.model.types import (
    LOCAL_PRINCIPAL,
    CallId,
    Principal,
    ResponseId,
    SearchScope,
    SessionId,
    SessionKey,
    TenantId,
    Tool,
    UnixMs,
)
from sessions.retrieval.file_search import NAME, TOOL, FileSearch
from sessions.retrieval.scoped_search import within
from sessions.retrieval.search import Deadlines, PassageSearch
from sessions.retrieval.services import Retrieval
from sessions.retrieval.vector_stores import DocumentId, Passage, VectorStore
from sessions.server_tools import ReportProgress, ServerTool, ToolRequest, ToolResult
from tests.support.engines.made_up_embedder import MadeUpEmbedder, made_up_file, made_up_retrieval, made_up_store

ACME = TenantId("acme")


def asked(user: str | None = None, *, tenant: TenantId = ACME, name: str = NAME, **arguments: Any) -> ToolRequest:
    return ToolRequest(
        key=SessionKey(tenant, SessionId("s")),
        response_id=ResponseId("r"),
        call_id=CallId("c"),
        name=name,
        arguments=json.dumps(arguments),
        execution_id="call_1",
        user=user,
    )


@pytest.fixture
async def made() -> AsyncIterator[Retrieval]:
    async with made_up_retrieval(lambda: UnixMs(1_000_000_000), reads=False) as retrieval:
        stores = retrieval.vector_stores
        assert stores is not None
        for number, (tenant, user, text) in enumerate(
            ((ACME, None, "The fox is red."), (ACME, "ann", "The fox of Ann is blue."), ("beta", None, "Beta's fox."))
        ):
            store = made_up_store(f"vs_{number}", tenant, user=user, created_at=UnixMs(number))
            await stores.passages.create(store)
            await stores.passages.add_file(made_up_file(f"f{number}", store), text)
            assert await stores.reader.read_one()
        yield retrieval


def tool(retrieval: Retrieval, others: Any = None) -> FileSearch:
    assert retrieval.vector_stores is not None
    return FileSearch(retrieval.vector_stores.passages, retrieval.vector_stores.search, others, Deadlines())


def texts(result: ToolResult) -> list[str]:
    return [each["text"] for each in json.loads(result.output)["results"]]


async def test_a_session_finds_its_owners_documents_and_no_others(made: Retrieval) -> None:
    search = tool(made)
    done = await search.call(asked(query="fox"))
    assert done.outcome == "done" and texts(done) == ["The fox is red."]
    (result,) = json.loads(done.output)["results"]
    assert (result["number"], result["file_id"], result["start"], result["end"]) == (1, "f0", 0, 15)
    assert texts(await search.call(asked("ann", query="fox"))) == ["The fox of Ann is blue."]
    assert texts(await search.call(asked("bob", query="fox"))) == []
    made_up = asked(query="fox", vector_store_ids=["vs_1", "vs_2"])
    assert texts(await search.call(made_up)) == ["The fox is red."], "a model names no stores"


async def test_an_answer_goes_on_without_and_says_so(made: Retrieval) -> None:
    assert isinstance(made.embedder, MadeUpEmbedder)
    made.embedder.away = True
    partly = await tool(made).call(asked(query="fox"))
    assert texts(partly) == ["The fox is red."] and json.loads(partly.output)["skipped"] == [SKIPPED, "embedding"]
    assert json.loads(partly.output)["reasons"] == {"embedding": "failed"}

    class Dead:
        async def stores(self, *_: object, **__: object) -> list[VectorStore]:
            raise Unavailable("vector_stores_unavailable", "away")

    assert made.vector_stores is not None
    dead = FileSearch(Dead(), made.vector_stores.search, None, Deadlines())  # type: ignore[arg-type]
    failed = await dead.call(asked(query="fox"))
    assert failed.outcome == "failed"
    nothing = {"results": [], "skipped": [SKIPPED, "vector_stores_unavailable"], "reasons": {"vectors": "failed"}}
    assert json.loads(failed.output) == nothing


@pytest.mark.parametrize("stalls", ["stores", "nearest"])
async def test_an_index_that_stalls_anywhere_is_late_and_the_answer_goes_on(made: Retrieval, stalls: str) -> None:
    assert made.vector_stores is not None
    passages = made.vector_stores.passages

    class Stalled:
        def __getattr__(self, name: str) -> Any:
            return self.stall if name == stalls else getattr(passages, name)

        async def stall(self, *_: object, **__: object) -> None:
            await asyncio.Event().wait()

    stalled: Any = Stalled()
    search = PassageSearch(stalled, made.embedder, Metrics())
    result = await FileSearch(stalled, search, None, Deadlines(index=0.01)).call(asked(query="fox"))
    assert result.outcome == "failed"
    late = {"results": [], "skipped": [SKIPPED, "vector_stores_unavailable"], "reasons": {"vectors": "late"}}
    assert json.loads(result.output) == late


async def test_arguments_are_checked_and_the_files_tools_go_first(made: Retrieval) -> None:
    search = tool(made)
    assert (await search.call(asked(question="fox"))).outcome == "not_sent"
    assert (await search.call(asked(name="weather"))).outcome == "not_sent"
    own = search.find(ACME, NAME)
    assert (
        own is not None
        and own.tool is TOOL.tool
        and search.find(ACME, "weather") is None
        and search.offered(ACME) == ()
    )

    class Others:
        def find(self, tenant: TenantId, name: str) -> ServerTool | None:
            return ServerTool(tool=Tool(name=name, server=True)) if name == "weather" else None

        def offered(self, tenant: TenantId) -> Sequence[str]:
            return ("weather",)

        async def call(self, request: ToolRequest, report: ReportProgress | None = None) -> ToolResult:
            return ToolResult(outcome="done", output=request.name)

    both = tool(made, Others())
    assert both.find(ACME, "weather") is not None and both.offered(ACME) == ("weather",)
    assert both.find(ACME, NAME) == both.find(ACME, NAME) is not None
    assert (await both.call(asked(name="weather"))).output == "weather"
    assert texts(await both.call(asked(query="fox"))) == ["The fox is red."]


def test_no_more_than_its_budget_stands_in_the_prompt() -> None:
    one = Passage(number=1, file=DocumentId("f"), filename="f", attributes={}, text="x" * 10, start=0, end=10)
    assert within([one, one, msgspec.structs.replace(one, text="y")], 20) == [one, one]


async def test_a_clients_scope_bounds_every_search_whatever_the_model_names(made: Retrieval) -> None:
    search, scope = tool(made), SearchScope(vector_store_ids=("vs_0", "vs_1", "vs_2"))

    async def found(**narrowed: Any) -> list[str]:
        request = asked(query="fox", vector_store_ids=["vs_9"], max_num_results=20)
        narrower = msgspec.structs.replace(scope, **narrowed)
        return texts(await search.call(msgspec.structs.replace(request, search=narrower)))

    assert await found() == ["The fox is red."], "not another user's, not another tenant's"
    assert await found(vector_store_ids=("vs_1",)) == []
    assert await found(filters={"type": "eq", "key": "year", "value": 2020}) == []
    assert await found(results_max=1) == ["The fox is red."]


def principal_of(user: str | None = None, role: Any = "service") -> Principal:
    return msgspec.structs.replace(LOCAL_PRINCIPAL, tenant=ACME, user=user, role=role)


@pytest.mark.parametrize(
    ("principal", "may_name"),
    [(principal_of(), {"vs_0"}), (principal_of("ann", "user"), {"vs_1"}), (principal_of("ann"), {"vs_0", "vs_1"})],
    ids=["a service", "a user", "a service for a user"],
)
async def test_a_scope_names_what_its_client_sees_and_its_turns_may_search(
    made: Retrieval, principal: Principal, may_name: set[str]
) -> None:
    search = tool(made)
    await search.check_search(principal, SearchScope(vector_store_ids=tuple(sorted(may_name))))
    for other in {"vs_0", "vs_1", "vs_2", "vs_9"} - may_name:
        with pytest.raises(NotFound, match=other):
            await search.check_search(principal, SearchScope(vector_store_ids=(*may_name, other)))


async def test_a_scope_counts_as_unchecked_while_the_index_does_not_answer(made: Retrieval) -> None:
    class Away:
        async def stores_of_ids(self, *_: object) -> list[VectorStore]:
            raise Unavailable("vector_stores_unavailable", "away")

    class Hanging:
        async def stores_of_ids(self, *_: object) -> list[VectorStore]:
            await asyncio.Event().wait()
            return []

    assert made.vector_stores is not None
    for index in (Away(), Hanging()):
        search = FileSearch(index, made.vector_stores.search, None, Deadlines(whole=0.01))  # type: ignore[arg-type]
        await search.check_search(principal_of(), SearchScope(vector_store_ids=("vs_9",)))
