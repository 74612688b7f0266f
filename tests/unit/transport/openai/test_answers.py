"""Answers: where turns go, and what is written of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
from msgspec.structs import replace
from starlette.requests import ClientDisconnect

from sessions.model import commands as cm
from sessions.model import events as ev
from sessions.model.commands import ActorCommand
from sessions.model.errors import BadInput, Gone, Internal, Limited, NotFound, Unavailable
from sessions.model.events import OutputTextDelta, SessionDeleted
from sessions.model.generation import ATTENDED
from sessions.model.request import Request
from sessions.model.types import (
    LOCAL_PRINCIPAL,
    CommandId,
    Epoch,
    InputImage,
    InputText,
    ItemId,
    Json,
    Principal,
    ResponseId,
    RunFile,
    Sampling,
    SessionId,
    Tool,
    UnixMs,
)
from tests.support.doors.transport import (
    FakeSessions,
    answering,
    begun,
    created,
    delta,
    function_call,
    function_output,
    gateway_over,
    key_of,
    memory_sessions,
    message,
    retracted,
)
from tests.support.virtual_time import advance, outcome, virtual
from transport.gateway import GatewayServices
from transport.history_index import MemoryHistory, Unit
from transport.http.headers import EventId
from transport.openai import export, responses_render
from transport.openai.chat import ChatCompletionReader
from transport.openai.chat_render import StreamUsage, as_error, error_of
from transport.openai.citations import CITATIONS_MAX, Citations
from transport.openai.completions import legacy_logprobs
from transport.openai.conversations import ItemPageQuery, item_page
from transport.openai.log_cursor import LogCursor
from transport.openai.responses import ResponseReader
from transport.openai.resume import StartedTurn, resume
from transport.openai.turn_starter import TurnInput, TurnRequest, TurnStarter
from transport.protocol.retraction import BLOT

ASK = Unit((cm.NewMessage(content="hi"),))
ANSWER = Unit((cm.NewMessage(role="assistant", content="hello"),), answer=True)
MORE = Unit((cm.NewMessage(content="and?"),))


class World:
    def __init__(self, sessions: FakeSessions) -> None:
        self.sessions = sessions
        self.starter = TurnStarter(gateway_over(sessions))

    async def start(
        self, *units: Unit, key: str | None = None, body: bytes = b"x", choices: int = 1, seen: EventId | None = None
    ) -> StartedTurn:
        """Starts a turn and reads its answer to the end."""
        given = TurnInput("m", None, None, (), list(units), Sampling(), choices)
        started = await self.starter.start(TurnRequest(LOCAL_PRINCIPAL, "chat", given, body, key, seen))
        usage = StreamUsage(last=True)
        whole = await ChatCompletionReader(self.starter, started, model="m", logprobs=False, usage=usage).whole()
        assert [choice["message"]["content"] for choice in whole["choices"]] == ["hello"] * choices
        return started


@pytest.fixture
async def world() -> World:
    sessions = await memory_sessions()
    answering(sessions)
    return World(sessions)


async def test_a_key_remembers_the_place_that_its_history_led_to(world: World) -> None:
    first = await world.start(ASK)
    second = await world.start(ASK, ANSWER, MORE, key="k")
    assert second.cursor.key == first.cursor.key
    other = World(world.sessions)  # which knows nothing of the history
    assert (await other.start(ASK, ANSWER, MORE, key="k")).responses == second.responses


@pytest.mark.parametrize("attended", [True, False])
async def test_choices_that_were_begun_are_cancelled_where_a_later_one_is_refused(attended: bool) -> None:
    """They went on to their ends, and nobody read them: of 12 × 16 at 32 turns at least 32 answers were left."""
    sessions = await memory_sessions()
    answering(sessions)
    begin, cancelled = sessions.answer, asyncio.Event()

    def answer(principal: Principal, command: ActorCommand) -> Any:
        if isinstance(command, cm.ResponseCancel):
            if sum(isinstance(each, cm.ResponseCancel) for each in sessions.executed) == 2:
                cancelled.set()
            return cm.Ok(id=command.id, session=command.session)
        if isinstance(command, cm.TurnCreate) and command.id.endswith(".2"):
            raise Limited("rate_limited", "None left.")
        return begin(principal, command)

    sessions.answer = answer
    starter = TurnStarter(gateway_over(sessions))
    request: dict[str, Json] = {ATTENDED: True} if attended else {}
    given = TurnInput("m", None, None, (), [ASK], Sampling(), 4, request=request)
    with pytest.raises(Limited):
        await starter.start(TurnRequest(LOCAL_PRINCIPAL, "chat", given, b"x"))
    if attended:
        await asyncio.wait_for(cancelled.wait(), 60)
    else:
        await starter.gateway.tasks.close()
        assert not any(isinstance(each, cm.ResponseCancel) for each in sessions.executed), "its repeat finds them"


@pytest.mark.parametrize("choices", [0, 2])
async def test_for_a_client_that_has_left_no_further_choice_is_begun(choices: int) -> None:
    """Sixteen choices of a client that left at once were all begun, and then all cancelled."""
    sessions = await memory_sessions()
    answering(sessions)
    begin, cancelled = sessions.answer, asyncio.Event()

    def answer(principal: Principal, command: ActorCommand) -> Any:
        if not isinstance(command, cm.ResponseCancel):
            return begin(principal, command)
        if sum(isinstance(each, cm.ResponseCancel) for each in sessions.executed) == choices:
            cancelled.set()
        return cm.Ok(id=command.id, session=command.session)

    def turns() -> int:
        return sum(isinstance(each, cm.TurnCreate) for each in sessions.executed)

    async def has_left() -> bool:
        return turns() == choices

    sessions.answer = answer
    starter = TurnStarter(gateway_over(sessions))
    given = TurnInput("m", None, None, (), [ASK], Sampling(), 4, request={ATTENDED: True})
    with pytest.raises(ClientDisconnect):
        await starter.start(TurnRequest(LOCAL_PRINCIPAL, "chat", given, b"x", has_left=has_left))
    if choices:
        await asyncio.wait_for(cancelled.wait(), 60)
    assert turns() == choices


class SharedHistory(MemoryHistory):
    """Histories of a cluster of gateways, which are shared and place sessions."""

    shared: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__(lambda: 0.0)
        self._marked: dict[tuple[bytes, bytes], SessionId] = {}

    async def mark(self, caller: bytes, marks: Sequence[bytes], session: SessionId) -> None:
        self._marked |= {(caller, mark): session for mark in marks}

    async def nearest(self, caller: bytes, marks: Sequence[bytes]) -> SessionId | None:
        return next((self._marked[caller, mark] for mark in marks if (caller, mark) in self._marked), None)


async def test_a_stored_session_begins_where_its_instructions_and_tools_are_and_goes_on_where_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sessions = await memory_sessions()
    answering(sessions)
    gateway = gateway_over(sessions)
    gateway.history = SharedHistory()
    starter = TurnStarter(gateway)
    near: list[SessionId | None] = []
    execute = sessions.execute

    async def watched(request: Request) -> cm.Ok:
        near.append(None if request.near is None else request.near.session)
        return await execute(request)

    monkeypatch.setattr(sessions, "execute", watched)
    rules = "Always look before you answer. " * 4

    async def send(name: str, instructions: str, tools: tuple[Tool, ...] = (), user: str | None = None) -> None:
        create = cm.SessionSettings(model="m", instructions=instructions, tools=tools)
        turn = cm.TurnCreate(
            id=CommandId(f"c-{name}"), session=SessionId(name), create=create, items=(cm.NewMessage(content="hi"),)
        )
        (await starter.send_stored(LOCAL_PRINCIPAL, turn, user=user)).cursor.close()

    look = (Tool(name="look", parameters={"type": "object"}),)
    await send("one", rules, look)
    await send("two", "Answer in verse, in French, and never of yourself, whatever is said to you.")
    await send("three", rules, look)
    await send("four", rules)
    await send("theirs", rules, look, user="eva")
    assert near == [None, "one", "one", "three", None], "its own tools, else its instructions, else its caller's last"
    after = cm.TurnCreate(id=CommandId("c-on"), session=SessionId("one"), items=(cm.NewMessage(content="and"),))
    (await starter.send_stored(LOCAL_PRINCIPAL, after, user=None)).cursor.close()
    assert near[-1] is None, "it goes to the session's owner"


def body(**fields: object) -> ev.ResponseBody:
    created = begun()[0]
    assert isinstance(created, ev.ResponseCreated)
    return replace(created.response, **{"status": "completed", "output": (message("hello"),), **fields})


def test_an_answer_that_failed_is_an_error_and_one_cut_to_length_is_not() -> None:
    failed = body(status="failed", error={"code": "content_filter", "message": "no"})
    assert isinstance(error_of(failed), BadInput)
    assert error_of(body(status="incomplete", incomplete_details={"reason": "max_output_tokens"})) is None
    odd = error_of(body(status="incomplete", incomplete_details={"reason": "session_deleted"}))
    assert odd is not None and odd.code == "session_deleted" and not odd.retryable
    for reason in ("cancelled", "steered", "orphaned"):
        ended = error_of(body(status="incomplete", incomplete_details={"reason": reason}))
        assert ended is not None and ended.code == "response_cancelled" and not ended.retryable
    late = error_of(body(status="incomplete", incomplete_details={"reason": "of_another_version"}))
    assert late is not None and late.retryable
    assert isinstance(as_error("rate_limited", "x"), Limited) and isinstance(as_error("internal_error", "x"), Internal)


def passages(file: str, count: int) -> list[dict[str, Any]]:
    place = {"file_id": file, "filename": f"{file}.md", "start": 0, "end": 5}
    return [{**place, "number": number, "start": number} for number in range(1, count + 1)]


@pytest.mark.parametrize(
    ("text", "cited"),
    [
        ("As [1] says.", [(3, 1)]),
        ("Both[1] say so [1][2].", [(4, 1), (15, 1), (18, 2)]),
        ("It fell [2], not [3].", [(8, 2)]),
        ("[a link][1], [1](https://example.com)", []),
        ("[01] and [1000] and [1, 2]", [(0, 1)]),
    ],
)
def test_numbers_of_passages_are_citations(text: str, cited: list[tuple[int, int]]) -> None:
    citations = Citations()
    citations.take_passages(passages("a", 2))
    assert [(each["index"], each["start"]) for each in citations.annotations_of(text)] == cited


def test_a_number_of_different_passages_cites_neither() -> None:
    citations = Citations()
    citations.take_passages(passages("a", 2))
    citations.take_passages(passages("b", 1))
    assert [each["filename"] for each in citations.annotations_of("[1] [2]")] == ["a.md"]


def test_what_another_tool_of_that_name_puts_out_is_no_passage() -> None:
    citations = Citations()
    citations.take_passages([{**passages("a", 1)[0], "number": [1]}, {"number": 1}])
    assert citations.annotations_of("[1]") == []


def test_a_text_has_a_bounded_number_of_annotations() -> None:
    citations = Citations()
    citations.take_passages(passages("a", 1))
    assert len(citations.annotations_of("[1] " * (CITATIONS_MAX + 1))) == CITATIONS_MAX


@pytest.mark.parametrize(
    ("text", "paths", "named"),
    [
        ("p/x.csv, then q/x.csv.", ["p/x.csv", "q/x.csv"], ["p/x.csv", "q/x.csv"]),
        ("[one](sandbox:/mnt/data/q/x.csv)", ["p/x.csv", "q/x.csv"], ["", "sandbox:/mnt/data/q/x.csv"]),
        ("max.csv, x.csv.gz, p/x.csv and x.csv", ["x.csv", "p/x.csv"], ["x.csv", "p/x.csv"]),
        ("max.csv and x.csv.gz", ["x.csv"], [""]),
        ("See x.csv.", ["plots/x.csv"], ["x.csv"]),
    ],
)
def test_a_file_is_cited_where_its_own_name_stands(text: str, paths: list[str], named: list[str]) -> None:
    citations = Citations()
    citations.take_files("c", [RunFile(file_id=path, path=path, size=1) for path in paths])
    cited: list[Any] = citations.annotations_of(text)
    assert [text[each["start_index"] : each["end_index"]] for each in cited] == named
    assert [each["filename"] for each in cited] == [path.rpartition("/")[2] for path in paths]
    last = [each for each, name in zip(cited, named, strict=True) if name == "x.csv" and "p/x.csv" in paths]
    assert all(each["end_index"] == len(text) for each in last)


def test_offsets_count_from_where_the_text_begins() -> None:
    entries = [
        {"token": token, "logprob": -1.0, "bytes": None, "top_logprobs": [{"token": "x", "logprob": -0.5}]}
        for token in ("ab", "c", "def")
    ]
    shown = legacy_logprobs(entries, 10)
    assert (shown["tokens"], shown["text_offset"]) == (["ab", "c", "def"], [10, 12, 13])
    assert shown["token_logprobs"] == [-1.0] * 3 and shown["top_logprobs"][0] == {"x": -0.5}
    pieces = [{"token": "\ufffd", "logprob": -1.0, "bytes": [0xF0, 0x9F + n], "top_logprobs": []} for n in range(2)]
    parts = legacy_logprobs([{**pieces[0], "top_logprobs": pieces}], 0)
    assert parts["tokens"] == ["bytes:\\xf0\\x9f"]
    assert list(parts["top_logprobs"][0]) == ["bytes:\\xf0\\x9f", "bytes:\\xf0\\xa0"], "none hides another"
    assert legacy_logprobs([], 3) == {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}


NAME = ResponseId("resp_1")


async def test_a_log_that_ends_before_its_answer_is_an_error_behind_what_was_sent() -> None:
    sessions = await memory_sessions()
    await sessions.append("s", created(), *begun(), delta("a", 3))
    gateway = gateway_over(sessions)
    response = ResponseReader(LogCursor(gateway, LOCAL_PRINCIPAL, key_of("s")), NAME, 1)
    started = StartedTurn(LogCursor(gateway, LOCAL_PRINCIPAL, key_of("s")), (NAME,), 1, b"chain")
    chat = ChatCompletionReader(TurnStarter(gateway), started, model="m", logprobs=False, usage=StreamUsage())
    await sessions.append("s", SessionDeleted())
    chunks = [chunk async for chunk in response.stream(starting_after=1, ids=EventId)]
    assert [chunk.splitlines()[0] for chunk in chunks[:2]] == [b"id: ep_s:4", b"id: ep_s:5"]
    assert b'"sequence_number":4' in chunks[-1] and chunks[-1].startswith(b"event: error")
    with pytest.raises(Gone):
        await chat.whole()


async def test_more_choices_than_there_are_and_an_item_that_is_not_there_are_refused() -> None:
    sessions = await memory_sessions()
    await sessions.append("s", created(), *begun(), delta("a", 3), *begun("item_b", "resp_2"))
    with pytest.raises(BadInput):
        await resume(gateway_over(sessions), LOCAL_PRINCIPAL, EventId(Epoch("ep_s"), 5, NAME, "0" * 12), choices=3)
    with pytest.raises(NotFound):
        item_page([message("a", "a")], ItemPageQuery(limit=20, order="asc", after=ItemId("d")))


def state() -> dict[str, Any]:
    asked = replace(message("what is 1+1?", "a"), role="user")
    call = function_call("b", "```", name="add\nnow", parent="a")
    output = function_output("d", "2", parent="b", is_error=True)
    return {"title": "Sums\nand more", "instructions": "be\nbrief", "items": [asked, call, output], "head": "d"}


def test_markdown_says_where_a_message_had_images() -> None:
    seen = InputImage(image_url="data:image/png;base64,AAAA", sha256="00", width=640, height=480)
    asked = replace(message("", "a"), role="user", content=(InputText(text="Which cat?"), seen, InputImage()))
    text = export.markdown({**state(), "items": [asked], "head": "a"})
    assert text.endswith("## User\n\nWhich cat?\n\n*[Image of 640 × 480 pixels]*\n"), "a retracted one is not there"


def test_markdown_has_the_branch_in_order_and_nothing_breaks_out_of_it() -> None:
    text = export.markdown(state())
    assert text.startswith("# Sums and more\n\n> be\n> brief\n")
    assert "## User\n\nwhat is 1+1?" in text
    assert "## Call of `add now`\n\n````json\n```\n````" in text
    assert "## Output (failed)\n\n```\n2\n```" in text


ONE, TWO = ResponseId("one"), ResponseId("two")


async def test_a_page_is_scrubbed_of_what_was_retracted_later() -> None:
    sessions = await memory_sessions()
    await sessions.append("s", created(), *begun(), delta("secret", 3), delta(" rest", 4), retracted(0, 6, "x"))
    with LogCursor(gateway_over(sessions), LOCAL_PRINCIPAL, key_of("s")) as cursor:
        await cursor.check(4)
        deltas = [r.event.delta async for r in cursor.records(4, live=False) if isinstance(r.event, OutputTextDelta)]
        assert deltas == [BLOT * 6, " rest"]
        assert cursor.retracted(ResponseId("resp_1"), "test") and not cursor.retracted(ONE, "test")


async def test_what_reads_a_log_gets_all_that_is_there_before_the_server_ends_it() -> None:
    sessions = await memory_sessions()
    await sessions.append("s", created(), *begun(), delta("a", 3))
    gateway = gateway_over(sessions)
    for follows, answers in ((None, False), ([ONE], True)):
        with LogCursor(gateway, LOCAL_PRINCIPAL, key_of("s"), follows=follows) as cursor:
            gateway.drain(answers=answers)
            records = cursor.records(0)
            assert [(await anext(records)).offset for _ in range(5)] == [1, 2, 3, 4, 5]
            error = await outcome(anext(records))
            assert isinstance(error, Unavailable) and error.code == "draining"


@virtual
async def test_an_answer_that_nobody_can_be_writing_is_not_awaited_for_ever() -> None:
    sessions = await memory_sessions()
    await sessions.append("s", created(), *begun())
    for attached, follows, ends in ((False, [ONE], True), (True, [ONE], False), (False, None, False)):
        services = GatewayServices(is_attached=lambda key, attached=attached: attached)  # type: ignore[misc]
        gateway = gateway_over(sessions, services=services)
        with LogCursor(gateway, LOCAL_PRINCIPAL, key_of("s"), follows=follows) as cursor:
            records = cursor.records(3)
            assert (await anext(records)).offset == 4
            waiting = asyncio.ensure_future(outcome(anext(records)))
            await advance(gateway.limits.silence_s - 1)
            assert not waiting.done()
            await advance(2.0)
            assert waiting.done() is ends
            if ends:
                error = waiting.result()
                assert isinstance(error, Unavailable) and error.code == "session_unavailable" and error.retryable
            waiting.cancel()


def test_a_response_has_every_field_that_open_responses_demands() -> None:
    """`required` of its ResponseResource; times are integers."""
    shown = responses_render.response(body(status="in_progress", output=()))
    required = (
        "id object created_at completed_at status incomplete_details model previous_response_id instructions output"
        " error tools tool_choice truncation parallel_tool_calls text top_p presence_penalty frequency_penalty"
        " top_logprobs temperature reasoning user usage max_output_tokens max_tool_calls store background service_tier"
        " metadata safety_identifier prompt_cache_key"
    )
    assert set(required.split()) <= shown.keys()
    assert type(shown["created_at"]) is int and shown["completed_at"] is None
    assert responses_render.response(body(), ended_at=UnixMs(5999))["completed_at"] == 5
    assert responses_render.response(body(status="failed"), ended_at=UnixMs(5999))["completed_at"] is None
