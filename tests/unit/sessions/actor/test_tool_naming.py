"""Server tools in commands: what the file says of them, and those of every session."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from msgspec import UNSET

from sessions.actor.tool_naming import with_server_tools
from sessions.model import commands as cm
from sessions.model.errors import BadInput, NotFound
from sessions.model.types import (
    LOCAL_PRINCIPAL,
    CommandId,
    McpSource,
    Principal,
    SearchScope,
    SessionId,
    TenantId,
    Tool,
)
from sessions.server_tools import ProgramStep, ProgramSuspended, ReportProgress, ServerTool, ToolRequest, ToolResult

BOOK = Tool(name="book", description="Books.", server=True)
LOOK = Tool(name="town__look", server=True, mcp=McpSource(server_label="town", tool="look"))
PAY = Tool(name="town__pay", server=True, mcp=McpSource(server_label="town", tool="pay"))
ACME, SESSION = TenantId("acme"), SessionId("s")


def principal_of(tenant: TenantId, user: str | None = None) -> Principal:
    return msgspec.structs.replace(LOCAL_PRINCIPAL, tenant=tenant, user=user)


class Books:
    """A port with one tool."""

    def __init__(self, *offered: str) -> None:
        self._offered = offered

    def find(self, tenant: TenantId, name: str) -> ServerTool | None:
        return ServerTool(tool=BOOK) if (tenant, name) == (ACME, "book") else None

    def offered(self, tenant: TenantId) -> Sequence[str]:
        return self._offered

    async def of_server(self, tenant: TenantId, source: McpSource) -> Sequence[ServerTool]:
        if source.server_label != "town" or tenant != ACME:
            raise NotFound("tool_not_found", "There is none.")
        return [ServerTool(tool=LOOK, read_only=True), ServerTool(tool=PAY, approval=True)]

    async def call(self, request: ToolRequest, report: ReportProgress | None = None) -> ToolResult:
        raise AssertionError("nothing is called here")

    async def advance(self, step: ProgramStep) -> ProgramSuspended | ToolResult:
        raise AssertionError("no program is run here")


def create(*tools: Tool) -> cm.SessionCreate:
    return cm.SessionCreate(id=CommandId("c"), session=SESSION, tools=tools)


async def named(
    command: cm.ActorCommand, *offered: str, takes_tools: bool = True, tenant: TenantId = ACME
) -> cm.ActorCommand:
    return await with_server_tools(command, Books(*offered), principal_of(tenant), takes_tools=takes_tools)


async def test_a_name_becomes_what_the_file_says() -> None:
    mine = Tool(name="mine")
    assert await named(create(mine, Tool(name="book", server=True))) == create(mine, BOOK)
    assert await named(create(mine)) == create(mine)
    with pytest.raises(NotFound):
        await named(create(Tool(name="other", server=True)))
    with pytest.raises(NotFound):
        await named(create(Tool(name="book", server=True)), tenant=TenantId("other"))
    with pytest.raises(NotFound):
        await with_server_tools(create(Tool(name="book", server=True)), None, principal_of(ACME), takes_tools=True)


async def test_each_session_of_a_tenant_has_what_is_offered() -> None:
    assert await named(create(), "book") == create(BOOK)
    assert await named(create(Tool(name="book", server=True)), "book") == create(BOOK)
    assert await named(create(), "book", takes_tools=False) == create(), "not of a model that calls none"
    with pytest.raises(BadInput, match="own"):
        await named(create(Tool(name="book", description="mine")), "book")
    turn = cm.TurnCreate(id=CommandId("c"), session=SESSION, create=cm.SessionSettings(), tools=())
    made = await named(turn, "book")
    assert isinstance(made, cm.TurnCreate) and made.create is not None and made.create.tools == made.tools == (BOOK,)
    later = cm.TurnCreate(id=CommandId("c"), session=SESSION)
    assert await named(later, "book") == later and later.tools is UNSET
    update = cm.SessionUpdate(id=CommandId("c"), session=SESSION, tools=None)
    assert await named(update) == update
    changed = await named(update, "book")
    assert isinstance(changed, cm.SessionUpdate) and changed.tools == (BOOK,)


async def of_town(**about: object) -> list[tuple[str, bool]]:
    """The tools that naming the MCP server brings, and whether somebody has to agree to their calls."""
    tool = Tool(name="town", server=True, mcp=McpSource(server_label="town", **about))  # type: ignore[arg-type]
    made = await named(create(tool))
    assert isinstance(made, cm.SessionCreate)
    return [(each.name, isinstance(each.mcp, McpSource) and each.mcp.approval is True) for each in made.tools]


async def test_an_mcp_server_stands_for_its_tools() -> None:
    assert await of_town() == [("town__look", False), ("town__pay", True)]
    assert await of_town(allowed=("look",)) == [("town__look", False)]
    assert await of_town(read_only=True) == [("town__look", False)]
    with pytest.raises(NotFound, match="no tool 'other'"):
        await of_town(allowed=("other",))


async def test_a_client_may_want_to_be_asked_more_and_never_less() -> None:
    assert await of_town(approval=True) == [("town__look", True), ("town__pay", True)]
    assert await of_town(approval=True, unasked=("look", "pay")) == [("town__look", False), ("town__pay", True)]
    assert await of_town(approval=("look",)) == [("town__look", True), ("town__pay", True)]


async def test_no_two_tools_have_one_name_and_a_tool_of_a_server_is_found_by_its_own() -> None:
    town = Tool(name="town", server=True, mcp=McpSource(server_label="town"))
    with pytest.raises(BadInput, match="Two tools"):
        await named(create(town, town))


async def test_only_the_search_of_documents_has_a_scope_and_keeps_it() -> None:
    scope = SearchScope(vector_store_ids=("vs_1",))
    for wrong in (
        Tool(name="book", server=True, search=scope),
        Tool(name="file_search", search=scope),
        Tool(name="file_search", server=True, search=SearchScope(vector_store_ids=("vs_1",), filters={"type": "like"})),
    ):
        with pytest.raises(BadInput):
            await with_server_tools(create(wrong), Searches(), principal_of(ACME), takes_tools=True)
    tool = Tool(name="file_search", server=True, search=scope)
    command = await with_server_tools(create(tool), Searches(), principal_of(ACME), takes_tools=True)
    assert isinstance(command, cm.SessionCreate) and command.tools == (
        Tool(name="file_search", description="Searches.", server=True, search=scope),
    )


class Searches(Books):
    """A port with the search of documents."""

    def find(self, tenant: TenantId, name: str) -> ServerTool | None:
        tool = Tool(name="file_search", description="Searches.", server=True)
        return ServerTool(tool=tool, check_search=self.check) if name == "file_search" else super().find(tenant, name)

    async def check(self, principal: Principal, scope: SearchScope) -> None:
        if (principal.tenant, principal.user, scope.vector_store_ids) != (ACME, None, ("vs_1",)):
            raise NotFound("vector_store_not_found", "There is none.")


async def test_a_scope_may_only_name_what_its_user_could_search() -> None:
    tools = (BOOK, Tool(name="file_search", server=True, search=SearchScope(vector_store_ids=("vs_1",))))
    with pytest.raises(NotFound) as refused:
        await with_server_tools(create(*tools), Searches(), principal_of(ACME, "ann"), takes_tools=True)
    assert refused.value.param == "tools[1].vector_store_ids"


async def test_a_file_search_of_the_tools_file_takes_no_scope() -> None:
    class TheirOwn(Books):
        def find(self, tenant: TenantId, name: str) -> ServerTool | None:
            return ServerTool(tool=Tool(name=name, server=True))

    tool = Tool(name="file_search", server=True, search=SearchScope(vector_store_ids=("vs_1",)))
    with pytest.raises(BadInput, match="takes no `search`"):
        await with_server_tools(create(tool), TheirOwn(), principal_of(ACME), takes_tools=True)
