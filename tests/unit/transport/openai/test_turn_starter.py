"""Where the turns of stateless requests go: a new session, the one that holds the history, or where a key leads."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

from sessions.model import commands as cm
from sessions.model.commands import ActorCommand
from sessions.model.errors import Limited
from sessions.model.generation import ATTENDED
from sessions.model.request import Request
from sessions.model.types import LOCAL_PRINCIPAL, CommandId, Json, Principal, Sampling, SessionId, Tool
from tests.support.doors.transport import FakeSessions, answering, gateway_over, memory_sessions
from transport.history_index import MemoryHistory, Unit
from transport.http.headers import EventId
from transport.openai.chat import ChatCompletionReader
from transport.openai.chat_render import StreamUsage
from transport.openai.resume import StartedTurn
from transport.openai.turn_starter import TurnInput, TurnRequest, TurnStarter

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

    @property
    def turns(self) -> list[cm.TurnCreate]:
        return [each for each in self.sessions.executed if isinstance(each, cm.TurnCreate) and each.respond]


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


class SharedHistory(MemoryHistory):
    """What the gateways of a cluster have: it places sessions."""

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
