"""Turns with the client's tools, from the model's own words to the answer that follows their outputs.

The engine says what a script says, one byte a token, and goes on with it wherever a run before it ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
import pytest

from actors.hosting.runtime import RuntimeLimits
from inference.simulated import decode
from sessions.actor.actor_context import ActorLimits
from sessions.actor.admission import Admission
from sessions.limits import Limits
from sessions.machine.inputs_and_effects import Command
from sessions.model import commands as cm
from sessions.model import events as ev
from sessions.model.errors import Overloaded, SessileError
from sessions.model.generation import KVPlace
from sessions.model.types import FunctionCall, ResponseId, SessionKey, Tokens, unpack_tokens
from sessions.ports import Engine
from tests.support.cluster.replicas import KEY, SESSION, Place, Reader, Replica, killed_at_append
from tests.support.scripted import LOOK, Scripted
from tests.support.virtual_time import advance, outcome, settled, until, virtual

TWO_CALLS = (
    'I will look. <tool_call>{"name": "look", "arguments": {"at": "the sea"}}</tool_call>'
    '<tool_call>{"name": "look", "arguments": {"at": "the sky"}}</tool_call>'
)
LIMITS = RuntimeLimits(actor=ActorLimits(tool_deadline_s=30.0))


class Stage:
    """A place whose engines follow a script."""

    def __init__(self, place: Place, *scripts: str) -> None:
        self.place = place
        self._scripts, self._given = list(scripts), dict[ResponseId, str]()

    async def replica(self, name: str = "r1") -> tuple[Replica, Reader]:
        engine = Scripted(self._scripts, self._given)
        replica = await self.place.replica(name, engine=engine, limits=LIMITS)
        return replica, self.place.read(replica)

    def calls(self) -> list[FunctionCall]:
        return [item for item in self.place.state().items.values() if isinstance(item, FunctionCall)]

    def made_both(self) -> bool:
        """The response that asks for two outputs has ended."""
        return bool(self.place.records()) and len(self.calls()) == 2 and not self.place.state().open

    def output(self, call: FunctionCall, text: str) -> cm.ToolOutput:
        return cm.ToolOutput(id=self.place.name(), session=SESSION, call_id=call.call_id, output=text)


@virtual
async def test_a_deadline_goes_on_over_a_death() -> None:
    """Counted from when the turn began to wait, not from when somebody took it over."""
    async with Place() as place:
        stage = Stage(place, TWO_CALLS)
        first, reader = await stage.replica("r1")
        await first.create(tools=(LOOK,))
        answer = await first.say("what colour is it")
        await reader.ended(answer.response_id)
        await advance(20.0)
        first.crash()
        await advance(7.0)
        heir, _ = await stage.replica("r2")
        await heir.runtime.recover(KEY)
        await advance(2.0)
        assert place.head().open
        await advance(2.0)
        assert not place.head().open


@virtual
async def test_a_call_of_a_strict_function_with_arguments_that_do_not_fit_fails_the_response() -> None:
    async with Place() as place:
        stage = Stage(place, '<tool_call>{"name": "look", "arguments": {"at": 7}}</tool_call>', "Sorry.")
        replica, reader = await stage.replica()
        await replica.create(tools=(msgspec.structs.replace(LOOK, strict=True),))
        answer = await replica.say("what colour is it")
        ended = await reader.ended(answer.response_id)
        assert ended.response.error is not None and ended.response.error["code"] == "tool_call_invalid"
        assert all(item.status == "incomplete" for item in ended.response.output)
        assert not place.head().open, "nobody is asked for its output"
        again = await replica.say("once more")
        await reader.ended(again.response_id)
        assert reader.text(again.response_id) == "Sorry."


class Full(Admission):
    """Lets one turn in and no other."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine, Limits, lambda: 0.0)
        self.asked = 0

    def admit(self, key: SessionKey, input: Command, new_tokens: int, *, expected: bool = True) -> Command:
        self.asked += 1
        if self.asked > 1:
            raise Overloaded("overloaded", "full", retry_after_ms=1)
        return input


@pytest.mark.parametrize("stateless", [False, True], ids=["tool.output", "turn.create"])
@virtual
async def test_outputs_go_on_with_their_turn_however_full_it_is(stateless: bool) -> None:
    async with Place() as place:
        stage = Stage(place, TWO_CALLS, "It is blue.")
        engine = Scripted(stage._scripts, stage._given)
        admission = Full(engine)
        limits = RuntimeLimits(actor=ActorLimits(admission=admission))
        replica = await place.replica(engine=engine, limits=limits)
        reader = place.read(replica)
        await replica.create(tools=(LOOK,))
        answer = await replica.say("what colour is it")
        await reader.ended(answer.response_id)
        calls = stage.calls()
        if stateless:
            items = tuple(cm.NewOutput(call_id=call.call_id, output="blue") for call in calls)
            done = await replica.do(
                cm.TurnCreate(id=place.name(), session=SESSION, items=items, after_response=answer.response_id)
            )
        else:
            for call in calls:
                done = await replica.do(stage.output(call, "blue"))
        await reader.ended(done.response_id)
        assert reader.text(done.response_id) == "It is blue." and admission.asked == 1
        refused = await outcome(replica.say("and now"))
        assert isinstance(refused, Overloaded)


@pytest.mark.parametrize("number", range(2, 40, 3))
@virtual
async def test_a_call_is_made_once_whichever_append_its_replica_dies_at(number: int) -> None:
    async with Place() as place:
        stage = Stage(place, TWO_CALLS, "It is blue.")
        first, _ = await stage.replica("r1")
        create = cm.SessionCreate(id=place.name(), session=SESSION, tools=(LOOK,))
        asked = cm.MessageCreate(id=place.name(), session=SESSION, content="what colour is it")
        await killed_at_append(first, number, create, asked, ended=stage.made_both)
        heir, reader = await stage.replica("r2")
        await heir.do(create)
        answer = await heir.do(asked)
        await heir.runtime.recover(KEY)
        await until(lambda: bool(place.terminals(answer.response_id)))
        assert [(call.name, call.arguments, call.status) for call in stage.calls()] == [
            ("look", '{"at": "the sea"}', "completed"),
            ("look", '{"at": "the sky"}', "completed"),
        ]
        ended = place.state().answers[answer.response_id]  # type: ignore[index]
        assert decode(unpack_tokens(ended.tokens)) + ended.tail == TWO_CALLS
        for call in stage.calls():
            last = await heir.do(stage.output(call, "blue"))
        await reader.ended(last.response_id)
        assert TWO_CALLS in heir.engine.prompts[-1]  # type: ignore[attr-defined]


@virtual
async def test_a_queued_message_that_a_tool_turn_precedes_is_refused_by_nothing() -> None:
    async with Place() as place:
        stage = Stage(place, TWO_CALLS, "It is blue.", "You are welcome.")
        replica, reader = await stage.replica()
        await replica.create(tools=(LOOK,))
        answer = await replica.say("what colour is it")
        thanks = await replica.say("thank you", queue=True)
        await reader.ended(answer.response_id)
        await settled()
        for call in stage.calls():
            done = await replica.do(stage.output(call, "blue"))
        await reader.ended(thanks.response_id)
        order = [r.event.response_id for r in reader.records if isinstance(r.event, ev.ResponseCompleted)]
        assert order == [answer.response_id, done.response_id, thanks.response_id]
        refused = await outcome(replica.do(stage.output(stage.calls()[0], "late")))
        assert isinstance(refused, SessileError)


class _Away(Scripted):
    """Its sessions' KV makes room while tools run, and is wanted back after 5 s."""

    tier: Literal["host", "device"] = "host"

    def __init__(self, scripts: list[str], given: dict[ResponseId, str]) -> None:
        super().__init__(scripts, given)
        self.called: list[tuple[str, ...]] = []
        self.warmed: list[str] = []

    def tools_called(self, key: SessionKey, tools: Sequence[str]) -> float | None:
        self.called.append(tuple(tools))
        return 5.0

    def place(self, key: SessionKey) -> KVPlace:
        return KVPlace(self.tier, 100)

    async def warm(self, key: SessionKey, prompt: Tokens, *, background: bool = False) -> bool:
        self.warmed.append(decode(prompt))
        return True


@virtual
async def test_kv_is_brought_back_before_the_outputs_are_expected_and_not_when_they_have_come() -> None:
    async with Place() as place:
        stage = Stage(place, TWO_CALLS, "It is blue.", TWO_CALLS, "It is blue.")
        engine = _Away(stage._scripts, stage._given)
        replica = await place.replica("r1", engine=engine, limits=LIMITS)
        reader = place.read(replica)
        await replica.create(tools=(LOOK,))
        answer = await replica.say("what colour is it")
        await reader.ended(answer.response_id)
        assert engine.called == [("look", "look")]
        await advance(4.0)
        assert engine.warmed == []
        await advance(2.0)
        (warmed,) = engine.warmed
        assert TWO_CALLS in warmed
        for call in stage.calls():
            await replica.do(stage.output(call, "blue"))
        await reader.ended((await replica.say("and again", queue=True)).response_id)
        assert len(engine.called) == 2
        for call in stage.calls()[2:]:
            await replica.do(stage.output(call, "blue"))
        await advance(10.0)
        assert len(engine.warmed) == 1, "the outputs were there first"


@virtual
async def test_kv_that_has_stayed_is_not_brought_back() -> None:
    async with Place() as place:
        stage = Stage(place, TWO_CALLS)
        engine = _Away(stage._scripts, stage._given)
        engine.tier = "device"
        replica = await place.replica("r1", engine=engine, limits=LIMITS)
        reader = place.read(replica)
        await replica.create(tools=(LOOK,))
        await reader.ended((await replica.say("what colour is it")).response_id)
        await advance(10.0)
        assert engine.called and engine.warmed == []
