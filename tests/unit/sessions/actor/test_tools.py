"""Tools in an actor: named, filtered, given their files, run and reported on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from actors.hosting.runtime import RuntimeLimits
from sessions.actor.actor_context import ActorLimits
from sessions.actor.progress_reports import MESSAGE_LENGTH_MAX, PAUSE_S, REPORTS_MAX, ProgressReports
from sessions.actor.prompt_filter import Neighbours, PromptFilter
from sessions.actor.session_files import session_files
from sessions.actor.tool_naming import with_server_tools
from sessions.machine.scrubbing import files_line, with_output
from sessions.machine.state import State, apply, empty
from sessions.metrics import Histogram
from sessions.model import commands as cm
from sessions.model import events as ev
from sessions.model.errors import BadInput, NotFound
from sessions.model.journal_types import Append
from sessions.model.types import (
    LOCAL_PRINCIPAL,
    CallId,
    CommandId,
    FunctionCallOutput,
    InputFile,
    InputImage,
    InputText,
    Item,
    ItemId,
    McpSource,
    Message,
    Principal,
    ResponseId,
    RunFile,
    SearchScope,
    SessionId,
    TenantId,
    TextOptions,
    Tool,
    UnixMs,
)
from sessions.model.verdicts import PASS, Finding, Verdict
from sessions.ports import FilterSet
from sessions.server_tools import CallFile, ReportProgress, ServerTool, ToolProgress, ToolRequest, ToolResult
from sessions.turn.past_texts import NEIGHBOURS_REACH, PromptText
from tests.support.cluster.replicas import KEY, Place, Reader, Replica
from tests.support.cluster.replicas import SESSION as RUNNING_SESSION
from tests.support.doors.transport import key_of
from tests.support.input_filter_set import InputFilterSet
from tests.support.scripted import Scripted
from tests.support.virtual_time import advance, virtual

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


CALLED = Tool(name="look", parameters={"type": "object", "properties": {"at": {"type": "string"}}}, server=True)
CALL = '<tool_call>{"name": "look", "arguments": {"at": "the sea"}}</tool_call>'


class Looks:
    """A port whose one tool answers when it is told to."""

    def __init__(self) -> None:
        self.asked: list[ToolRequest] = []
        self.result: ToolResult | Exception = ToolResult(outcome="done", output="blue")
        self.hold: asyncio.Event | None = None
        self.there = True
        self.cancelled = 0
        self.approval = False

    def find(self, tenant: TenantId, name: str) -> ServerTool | None:
        return ServerTool(tool=CALLED, approval=self.approval) if self.there and name == "look" else None

    def offered(self, tenant: TenantId) -> Sequence[str]:
        return ()

    async def call(self, request: ToolRequest, report: ReportProgress | None = None) -> ToolResult:
        self.asked.append(request)
        try:
            if self.hold is not None:
                await self.hold.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


async def begun(
    place: Place, looks: Looks, *scripts: str, filters: FilterSet | None = None
) -> tuple[Replica, Reader, ResponseId]:
    engine = Scripted([*scripts], {})
    limits = RuntimeLimits(actor=ActorLimits(tool_deadline_s=30.0))
    replica = await place.replica("r1", engine=engine, limits=limits, tools=looks, filters=filters)
    reader = place.read(replica)
    await replica.create(tools=(Tool(name="look", server=True),))
    answer = await replica.say("what colour is it")
    assert answer.response_id is not None
    await reader.ended(answer.response_id)
    return replica, reader, answer.response_id


def outputs(place: Place) -> list[FunctionCallOutput]:
    return [item for item in place.state().items.values() if isinstance(item, FunctionCallOutput)]


@virtual
async def test_a_tool_that_is_gone_or_breaks_costs_its_call_alone() -> None:
    async with Place() as place:
        looks = Looks()
        looks.result = RuntimeError("a bug")
        await begun(place, looks, CALL, "Sorry.")
        await advance(5.0)
        assert outputs(place)[0].output.startswith("outcome_unknown") and not place.head().open


@virtual
async def test_a_call_that_somebody_has_to_agree_to_waits_over_a_death() -> None:
    async with Place() as place:
        looks = Looks()
        looks.approval = True
        replica, _, response_id = await begun(place, looks, CALL, "It is blue.")
        await advance(5.0)
        (call_id,) = place.state().awaiting[response_id].missing
        assert looks.asked == [] and place.head().open
        replica.crash()
        await advance(7.0)
        heir = await place.replica("r2", engine=replica.engine, tools=looks)
        await heir.runtime.recover(KEY)
        await advance(1.0)
        assert looks.asked == []
        await heir.do(cm.ToolApprove(id=place.name(), session=RUNNING_SESSION, call_id=call_id))
        await advance(5.0)
        assert len(looks.asked) == 1 and outputs(place)[0].output == "blue" and not place.head().open
        kinds = [type(record.event) for record in place.records()]
        assert kinds.index(ev.ToolApprovalRequested) < kinds.index(ev.ToolApprovalDecided)
        assert kinds.count(ev.ToolApprovalRequested) == 1


@virtual
async def test_a_program_of_a_release_that_ran_them_ends_as_unknown_and_its_turn_goes_on() -> None:
    """In its journal the program's own calls stand, one of them sent and not answered."""
    async with Place() as place:
        looks = Looks()
        looks.hold = asyncio.Event()
        replica, _, response_id = await begun(place, looks, CALL, "It is blue.")
        await advance(5.0)
        (call_id,) = place.state().awaiting[response_id].missing
        replica.crash()
        called = ev.ProgramCalled(
            response_id=response_id,
            call_id=CallId(f"{call_id}.1"),
            program_call_id=call_id,
            item_id=ItemId("i"),
            name="book",
            arguments="{}",
        )
        sent = ev.ToolCallStarted(
            response_id=response_id, call_id=called.call_id, name="book", execution_id="derived-from-that"
        )
        head = place.head()
        records = (
            ev.Record(head.top + 1, head.updated_at, called),
            ev.Record(head.top + 2, head.updated_at, sent),
        )
        await place.store.journal.append(
            Append(key=KEY, fence=head.fence, top=head.top, records=records, at=head.updated_at)
        )
        looks.there = False
        heir = await place.replica("r2", engine=replica.engine, tools=looks)
        await advance(7.0)
        await heir.runtime.recover(KEY)
        await advance(5.0)
        (output,) = outputs(place)
        assert output.call_id == call_id and output.output.startswith("outcome_unknown")
        assert not place.head().open and len(looks.asked) == 1


class Redact(InputFilterSet):
    """Redacts "red", blocks "black"."""

    async def check(self, principal: Principal, text: str) -> Verdict:
        return self.check_seam(principal, text, len(text), 0)

    def check_seam(self, principal: Principal, text: str, last: int, first: int) -> Verdict:
        for word in ("black", "red"):
            start, end = text.find(word), text.find(word) + len(word)
            if 0 <= start < last and end > first:
                action: Any = "block" if word == "black" else "redact"
                found = Finding(category="c", action=action, start=start, end=end)
                return Verdict(action=action, start=start, end=end, replacement="~", findings=(found,))
        return PASS


class Seeing(Redact):
    """Blocks wide images, flags high ones."""

    async def check_image(self, principal: Principal, image: InputImage) -> Verdict:
        if image.width == image.height:
            return PASS
        action: Any = "block" if image.width > image.height else "flag"
        found = Finding(category="images", action=action, start=0, end=1)
        return Verdict(action=action, message="Too wide.", findings=(found,))


@pytest.fixture
def filter() -> PromptFilter:
    return PromptFilter(LOCAL_PRINCIPAL, Redact(), 1_000, Histogram(()))


def call(arguments: str, name: str = "look") -> cm.NewCall:
    return cm.NewCall(call_id=CallId("c"), name=name, arguments=arguments)


async def refused(filtering: Any) -> str | None:
    with pytest.raises(BadInput) as caught:
        await filtering
    assert caught.value.code == "content_filter"
    return caught.value.param


async def test_arguments_are_redacted_and_names_are_refused(filter: PromptFilter) -> None:
    assert (await filter.call(call('{"a": "red"}'))).arguments == '{"a": "~"}'
    await refused(filter.call(call("{}", name="red")))
    await refused(filter.call(call('{"a": "black"}')))
    await refused(filter.output("fine", unknown="red"))


async def test_prose_of_a_tool_is_redacted_and_nothing_else(filter: PromptFilter) -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"at": {"description": "a red one", "examples": ["red"]}}}
    (tool,) = await filter.tools((Tool(name="look", description="red", parameters=schema),))
    assert tool.description == "~" and tool.parameters is not None
    assert tool.parameters["properties"] == {"at": {"description": "a ~ one", "examples": ["~"]}}
    assert len(filter.findings) == 3
    schemas: list[dict[str, Any]] = [{"properties": {"red": {}}}, {"enum": ["red"]}, {"pattern": "red"}]
    for bad in schemas:
        assert await refused(filter.tools((Tool(name="look", parameters=bad),))) == "tools"
    assert await refused(filter.tools((Tool(name="red"),))) == "tools"


async def test_the_schema_of_an_answer_is_never_changed(filter: PromptFilter) -> None:
    await filter.format(None)
    await filter.format(TextOptions({"type": "json_object"}))
    assert await refused(filter.format(TextOptions({"type": "json_schema", "schema": {"const": "red"}}))) == "text"


async def test_what_lies_over_two_texts_is_taken_out_of_the_second(filter: PromptFilter) -> None:
    assert await filter.text("a re") == "a re"
    assert await filter.text("d rose") == "~ rose"
    assert [(each.start, each.end, each.text) for each in filter.findings] == [(0, 1, "d")]
    assert await filter.text("bla", by_model=True) == "bla"
    assert await filter.text("harmless") == "harmless"
    await refused(filter.text("ck", by_model=True))  # beside what the same author wrote


async def test_what_stands_before_is_read_to_a_bound() -> None:
    near = Neighbours([PromptText("x" * 2 * NEIGHBOURS_REACH, False), PromptText("", True), PromptText("y", True)])
    ends = dict.fromkeys(each.end for each in near.ends(by_model=True))
    assert {len(end) for end in ends} == {NEIGHBOURS_REACH, 1}
    assert all(end.endswith("y") for end in ends)


async def test_images_are_judged_where_they_stand_by_the_filters_that_see(filter: PromptFilter) -> None:
    square, wide, high = (InputImage(image_url="data:", width=w, height=h) for w, h in ((2, 2), (3, 2), (2, 3)))
    seeing = PromptFilter(LOCAL_PRINCIPAL, Seeing(), 1_000, Histogram(()))
    await seeing.images("no image")
    await seeing.images((square, InputText("Look:"), high))
    assert [(each.start, each.end, each.text) for each in seeing.findings] == [(6, 7, "[image]")]
    assert await refused(seeing.images((wide, high))) == "content"
    assert [each.action for each in seeing.findings] == ["flag", "block", "flag"]
    await filter.images((wide, high))  # which sees nothing
    await seeing.images((InputImage(width=3, height=2),))  # of which models read nothing
    assert filter.findings == [] and len(seeing.findings) == 3


def user(name: str, parent: str | None, *parts: Any) -> Message:
    return Message(
        id=ItemId(name),
        parent_id=None if parent is None else ItemId(parent),
        role="user",
        content=parts,
        status="completed",
        created_at=UnixMs(1),
    )


def output(name: str, parent: str, text: str = "", **files: str) -> FunctionCallOutput:
    written = tuple(RunFile(file_id=file_id, path=path, size=1) for path, file_id in files.items())
    return FunctionCallOutput(
        id=ItemId(name),
        parent_id=ItemId(parent),
        call_id=CallId(name),
        output=text or " ".join(files),
        created_at=UnixMs(1),
        files=written,
    )


def state_of(*items: Item) -> State:
    state = empty(key_of("s"), user=None)
    for offset, item in enumerate(items, 1):
        apply(state, ev.Record(offset, UnixMs(1), ev.ItemCreated(item=item)))
    return state


def test_files_of_the_branch_in_order_each_once() -> None:
    state = state_of(
        user("1", None, InputText("look"), InputFile(file_id="f1", filename="a.csv", text="1")),
        user("2", "1", InputFile(filename="bytes.txt", text="x"), InputImage(file_id="f2", sha256="0")),
        output("3", "2", plot="w1", table="w2"),
        user("4", "3", InputFile(file_id="f1", filename="a.csv", text="1")),
        output("5", "4", plot="w3"),
        output("other", "2", secret="w4"),
    )
    tool = Tool(name="code", server=True, file_ids=("f9", "f1"))
    assert session_files(state, ItemId("5"), tool) == (
        CallFile("f9", "tool"),
        CallFile("f1", "tool"),
        CallFile("f2", "message"),
        CallFile("w2", "run", "table"),
        CallFile("w3", "run", "plot"),
    )
    assert session_files(state, ItemId("1"), None) == (CallFile("f1", "message", "a.csv"),)
    assert session_files(state, None, None) == ()


def test_a_runs_file_replaces_the_one_that_it_was_made_from() -> None:
    def made(file_id: str, path: str, source: str) -> RunFile:
        return RunFile(file_id=file_id, path=path, size=1, source=source)

    def state(*written: tuple[RunFile, ...]) -> State:
        outputs = [
            msgspec.structs.replace(output(f"{at + 1}", f"{at}"), files=files) for at, files in enumerate(written, 1)
        ]
        return state_of(user("1", None, InputText("go")), *outputs)

    def files(state: State, *given: str) -> list[CallFile]:
        tool = Tool(name="code", server=True, file_ids=given)
        return [file for file in session_files(state, state.newest, tool) if file.origin == "run"]

    once = made("w1", "a", "u1")
    other = state((once,), (made("w2", "a", "u2"),))
    assert files(other) == [CallFile("w1", "run", "a", "u1"), CallFile("w2", "run", "a", "u2")]
    moved = state((once,), (made("w2", "a-2", "w1"),), (made("w3", "a-2", "w2"),))
    assert files(moved) == [CallFile("w3", "run", "a-2", "u1")], "over any number of runs, wherever it stood"
    at_once = state((once,), (made("w2", "a", "w1"),), (made("w3", "a", "w1"),))
    assert files(at_once) == [CallFile("w3", "run", "a", "u1")], "the last of those made at the same time"
    named = state((once,), (made("w2", "a", "w1"),))
    assert files(named, "w1") == [CallFile("w2", "run", "a", "w1")], "a client may give a run's file"


def test_a_file_that_an_output_names_no_more_is_none_of_its() -> None:
    item = output("1", "0", "[files: a.txt (1 bytes), b.txt (1 bytes)]", **{"a.txt": "w1", "b.txt": "w2"})
    assert with_output(item, "[files: ..., b.txt (1 bytes)]").files == (RunFile(file_id="w2", path="b.txt", size=1),)
    for text in (
        "",
        "b.txt (1 bytes)",
        "[files: x/b.txt (1 bytes), b.txt.gz (1 bytes), a.txt (12 bytes)]",
        "[removed]",
    ):
        assert not isinstance(with_output(item, text).files, tuple), text
    printed = f"a, b\n{files_line(item.files or ())}\n[files that are not kept: c; no room]"
    assert with_output(item, printed).files == item.files


class Seen:
    def __init__(self) -> None:
        self.reports: list[ToolProgress] = []

    async def __call__(self, progress: ToolProgress) -> None:
        self.reports.append(progress)


@virtual
async def test_the_newest_of_what_waits_is_passed_on() -> None:
    seen = Seen()
    async with ProgressReports(seen, asyncio.ensure_future) as reports:
        for number in range(1, 100):
            reports.put(ToolProgress(number, 100, "x" * 5_000))
        await advance(PAUSE_S * 3)
        assert [each.progress for each in seen.reports] == [99]
        reports.put(ToolProgress(100.0))
        await advance(PAUSE_S * 3)
        assert [each.progress for each in seen.reports] == [99, 100]
    assert len(seen.reports[0].message or "") == MESSAGE_LENGTH_MAX


@virtual
async def test_what_is_no_progress_is_left_out() -> None:
    seen = Seen()
    async with ProgressReports(seen, asyncio.ensure_future) as reports:
        for number in (2.0, 1.0, 2.0, float("nan"), float("inf")):
            reports.put(ToolProgress(number, float("nan")))
        await advance(PAUSE_S * 3)
    reports.put(ToolProgress(3.0))
    assert seen.reports == [ToolProgress(2.0)]


@virtual
async def test_a_call_reports_so_often_and_no_more() -> None:
    seen = Seen()
    async with ProgressReports(seen, asyncio.ensure_future) as reports:
        for number in range(3 * REPORTS_MAX):
            reports.put(ToolProgress(number))
            await advance(PAUSE_S * 2)
    assert len(seen.reports) == REPORTS_MAX
