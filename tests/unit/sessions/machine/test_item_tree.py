"""Branches and the ledger: a cut, and the name of a call, count on the line that they were made for."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.simulated import SimulatedTokenizer
from sessions.actor.actor_context import ActorLimits
from sessions.actor.input_pipeline import prepare_input
from sessions.machine import inputs_and_effects, item_tree
from sessions.machine.state import pack_state, unpack_state
from sessions.metrics import Metrics
from sessions.model import commands as cm
from sessions.model.errors import BadInput
from sessions.model.types import LOCAL_PRINCIPAL, CallId, ItemId, Message, ResponseId
from sessions.ports import ChatMessage
from sessions.turn.keyword_filter import KeywordFilterSet
from sessions.turn.ledger import PromptPlan
from tests.support.machine.ledger_fixture import Counting, Desk, info
from tests.support.machine.machine_fixture import SESSION

TEXT = "one two three four five six"


class Fork(Desk):
    """Plans as a turn does: a new cut is journaled at once."""

    def __init__(self, *, window: int = 1_000) -> None:
        super().__init__(window=window)
        self.overfull: set[ItemId | None] = set()  # the ends of lines that needed a cut

    async def fit(self, response_id: ResponseId) -> PromptPlan:
        plan = await self.ledger.plan(self.state.open[response_id])
        if plan.cut is not None:
            self.overfull.add(self.state.open[response_id].body.parent_id)
            self.input(inputs_and_effects.Fitted(response_id, self.running[response_id], plan.dropped, plan.cut))
        return plan

    async def say_and_fit(self, text: str = TEXT, **more: object) -> PromptPlan:
        """A whole turn."""
        response = await self.ask(text, **more)
        plan = await self.fit(response)
        await self.says(response, "seven eight")
        self.finish(response)
        return plan

    async def until_cut(self) -> PromptPlan:
        while (plan := await self.say_and_fit()).cut is None:
            pass
        return plan

    def questions(self, leaf: ItemId | None) -> list[ItemId]:
        return [
            each.id for each in item_tree.branch(self.state, leaf) if isinstance(each, Message) and each.role == "user"
        ]

    async def edit(self, item_id: ItemId, text: str = "zero", **more: object) -> ResponseId:
        command = cm.MessageEdit(id=self.name(), session=SESSION, item_id=item_id, content=text, **more)  # type: ignore[arg-type]
        answer = await self.send(command)
        assert answer.response_id is not None
        return answer.response_id

    def again(self, question: ItemId | None, **more: object) -> ResponseId:
        answer = self.ok(cm.ResponseCreate(id=self.name(), session=SESSION, parent_id=question, **more))  # type: ignore[arg-type]
        assert answer.response_id is not None
        return answer.response_id

    async def turn(self, *items: cm.NewItem, parent: ItemId | None) -> ResponseId:
        """As an OpenAI door tells it."""
        command = cm.TurnCreate(id=self.name(), session=SESSION, items=items, parent_id=parent)
        filters, limits, engine = KeywordFilterSet(), ActorLimits(), SimpleNamespace(info=info())
        world: Any = SimpleNamespace(
            filters=filters, limits=limits, metrics=Metrics(), memories=None, tools=None, knowledge=None, engine=engine
        )
        given = inputs_and_effects.Command(LOCAL_PRINCIPAL, command, cm.command_digest(command))
        answer = self.input(await prepare_input(given, ledger=self.ledger, context=world)).answer
        assert isinstance(answer, cm.Ok) and answer.response_id is not None, answer
        return answer.response_id


async def test_a_question_edited_before_a_cut_was_made_has_all_that_stands_before_it() -> None:
    desk = Fork(window=120)
    cut = (await desk.until_cut()).cut
    assert cut is not None
    leaf = desk.state.newest
    questions = desk.questions(leaf)
    behind = questions[questions.index(cut) + 1]
    response = await desk.edit(behind)
    plan = await desk.fit(response)
    assert (plan.dropped, plan.cut) == (0, None) and list(plan.prompt) == await desk.expected(response)
    desk.reload()
    assert await desk.ledger.plan(desk.state.open[response]) == plan
    desk.answer(response, "eight")
    whole = list(await desk.ledger.whole(desk.state.newest))
    assert whole[: len(plan.prompt)] == list(plan.prompt), "and what is warmed has it"
    back = await desk.ledger.whole(leaf)
    assert (await desk.say_and_fit(parent_id=leaf)).prompt[: len(back)] == back, "the first line keeps its cut"


async def test_a_snapshot_that_does_not_tell_whose_its_cuts_are_is_folded_anew() -> None:
    desk = Fork(window=120)
    cut = (await desk.until_cut()).cut
    packed = msgspec.msgpack.decode(pack_state(desk.state))
    assert unpack_state(msgspec.msgpack.encode(packed)) == desk.state
    assert unpack_state(msgspec.msgpack.encode({**packed, "version": 2, "cuts": [cut]})) is None
    desk.check_folding(len(desk.records) // 2)


@given(st.data())
def test_over_any_branches_prompts_stay_and_nothing_is_left_out_that_fits(data: st.DataObject) -> None:
    asyncio.run(_over_any_branches(data))


async def _over_any_branches(data: st.DataObject) -> None:
    desk = Fork(window=100)
    plans: dict[ResponseId, PromptPlan] = {}  # of open responses
    if data.draw(st.booleans()):
        await desk.until_cut()
    for _ in range(data.draw(st.integers(1, 25))):
        questions = [item.id for item in desk.state.items.values() if getattr(item, "role", "") == "user"]
        most = data.draw(st.sampled_from([None, None, 5, 50]))
        act = data.draw(st.sampled_from(["ask", "ask", "ask", "edit", "again", "on", "end", "cancel", "reload"]))
        words = " ".join([TEXT] * data.draw(st.integers(1, 2)))
        response: ResponseId | None = None
        match act:
            case "ask" if not desk.state.open:
                response = await desk.ask(words, max_output_tokens=most)
            case "edit" if questions:
                response = await desk.edit(data.draw(st.sampled_from(questions)), words, max_output_tokens=most)
            case "again" if questions:
                response = desk.again(data.draw(st.sampled_from(questions)), max_output_tokens=most)
            case "on" if questions:
                response = await desk.ask(words, parent_id=data.draw(st.sampled_from(questions)))
            case "end" if desk.state.open:
                ending = data.draw(st.sampled_from(list(desk.state.open)))
                await desk.says(ending, data.draw(st.sampled_from(["a", "a b c d e f g h i j"])))
                desk.finish(ending)
                leaf = desk.state.answers[ending].items[-1]
                whole = await desk.ledger.whole(leaf)
                plan = await desk.fit(await desk.ask("a", parent_id=leaf, max_output_tokens=1))
                assert plan.cut is not None or plan.prompt[: len(whole)] == whole
                desk.cancel(next(reversed(desk.state.open)))
            case "cancel" if desk.state.open:
                ending = data.draw(st.sampled_from(list(desk.state.open)))
                desk.cancel(ending)
            case "reload":
                desk.reload()
        plans = {name: plan for name, plan in plans.items() if name in desk.state.open}  # one may have been given up
        if response is not None:
            try:
                plan = await desk.fit(response)
            except BadInput:
                desk.cancel(response)
            else:
                plans[response] = plan
                line = {item.id for item in item_tree.branch(desk.state, desk.state.open[response].body.parent_id)}
                assert plan.dropped == 0 or desk.overfull & line, "nothing was ever too much on this line"
        for name, plan in plans.items():
            again = await desk.ledger.plan(desk.state.open[name])
            assert again == msgspec.structs.replace(plan, cut=None), "a prompt that was made stays"


def _called(name: str) -> tuple[cm.NewItem, ...]:
    """A question and the call that it led to, under the id that this client gives to every first call."""
    call = cm.NewCall(call_id=CallId("call_0"), name=name, arguments="{}")
    return cm.NewMessage(role="user", content=f"{name} it"), call


OUTPUT = cm.NewOutput(call_id=CallId("call_0"), output="here")


async def _tool(name: str) -> list[int]:
    message = ChatMessage(role="tool", text="here", call_id=CallId("call_0"), name=name)
    return list(await SimulatedTokenizer().message(message))


def _holds(prompt: list[int], part: list[int]) -> int:
    return sum(prompt[at : at + len(part)] == part for at in range(len(prompt)))


@pytest.mark.parametrize("how", ["together", "later", "rendered"])
async def test_an_output_names_the_call_of_its_own_branch(how: str) -> None:
    desk = Fork()
    desk.finish(await desk.turn(*_called("look"), OUTPUT, parent=None))
    if how == "later":
        desk.finish(await desk.turn(*_called("find"), parent=None))
        answer = await desk.turn(OUTPUT, parent=desk.state.newest)
    else:
        answer = await desk.turn(*_called("find"), OUTPUT, parent=None)
    if how == "rendered":
        desk.reload(Counting("other-vocabulary"))
    prompt = await desk.prompt(answer)
    assert _holds(prompt, await _tool("find")) == 1 and _holds(prompt, await _tool("look")) == 0
