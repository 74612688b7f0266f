"""Anything may happen to a session, in any order, and its activation may die at any moment."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec import UNSET

from sessions.machine import event_writer, inputs_and_effects
from sessions.model import commands as cm
from sessions.model.errors import Unavailable
from sessions.model.types import LOCAL_PRINCIPAL, CallId, ItemId, Message, Principal, ResponseId, Usage
from tests.support.machine.machine_fixture import SESSION, Ground

OTHER = Principal(tenant=LOCAL_PRINCIPAL.tenant, key_id="other", role="service")
principals = st.sampled_from([LOCAL_PRINCIPAL, OTHER])
words = st.sampled_from(["a", "be", "see…"])


class AnyHistory(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.ground = Ground()
        self.accepted: list[tuple[Principal, cm.ActorCommand, cm.Ok]] = []

    # -- choices ---------------------------------------------------------------------------------------------------

    def some_item(self, data: st.DataObject) -> ItemId:
        return data.draw(st.sampled_from(sorted(self.ground.state.items) or [ItemId("nowhere")]))

    def some_parent(self, data: st.DataObject) -> Any:
        item = self.some_item(data)
        return data.draw(st.sampled_from([UNSET, UNSET, UNSET, None, item, item, ItemId("nowhere")]))

    def some_run(self, data: st.DataObject) -> tuple[ResponseId, int]:
        """Mostly a response that runs; sometimes one that does not, or an old run of it."""
        running = sorted(self.ground.running.items())
        stale = [(response_id, number - 1) for response_id, number in running]
        ended = [(response_id, 1) for response_id in self.ground.state.answers]
        return data.draw(st.sampled_from([*running * 3, *stale, *ended] or [(ResponseId("resp_none"), 1)]))

    def send(self, principal: Principal, command: cm.ActorCommand, *, lost: bool = False) -> None:
        ground = self.ground
        if lost:  # this activation dies before its append: the next one does the same again
            answer = ground.do(command, principal, durable=False)
            ground.activate()
            again = ground.do(command, principal)
            if isinstance(answer, cm.Ok) and isinstance(again, cm.Ok):
                assert (answer.item_id, answer.response_id) == (again.item_id, again.response_id)
        else:
            again = ground.do(command, principal)
        if isinstance(again, cm.Ok):
            self.accepted.append((principal, command, again))
            self.check_answer(command, again)

    def check_answer(self, command: cm.ActorCommand, answer: cm.Ok) -> None:
        assert answer.id == command.id
        if isinstance(command, cm.SessionWarm) or answer.noop:
            return
        assert answer.offset is not None
        event = self.ground.records[answer.offset - 1].event
        if isinstance(command, cm.TurnCreate):
            assert answer.item_id is None or answer.item_id in self.ground.state.items
        elif answer.item_id is not None:
            item = getattr(event, "item", None)
            assert item is not None and item.id == answer.item_id
        elif isinstance(command, cm.ResponseCreate):
            assert event.response_id == answer.response_id  # type: ignore[union-attr]

    # -- commands --------------------------------------------------------------------------------------------------

    @initialize(principal=principals)
    def create(self, principal: Principal) -> None:
        self.send(principal, cm.SessionCreate(id=self.ground.name(), session=SESSION))

    @rule(data=st.data(), who=principals, word=words, respond=st.booleans(), queue=st.booleans(), lost=st.booleans())
    def message(self, data: st.DataObject, who: Principal, word: str, respond: bool, queue: bool, lost: bool) -> None:
        parent = self.some_parent(data)
        command = cm.MessageCreate(
            id=self.ground.name(), session=SESSION, content=word, parent_id=parent, respond=respond, queue=queue
        )
        self.send(who, command, lost=lost)

    @rule(who=principals, word=words, number=st.integers(1, 3))
    def messages_that_wait(self, who: Principal, word: str, number: int) -> None:
        for _ in range(number):
            self.send(who, cm.MessageCreate(id=self.ground.name(), session=SESSION, content=word, queue=True))

    @rule(data=st.data(), who=principals, word=words, respond=st.booleans())
    def edit(self, data: st.DataObject, who: Principal, word: str, respond: bool) -> None:
        item_id = self.some_item(data)
        command = cm.MessageEdit(id=self.ground.name(), session=SESSION, item_id=item_id, content=word, respond=respond)
        before = self.ground.state.items.get(item_id)
        self.send(who, command)
        if self.accepted and self.accepted[-1][1] is command:
            sibling = self.ground.state.items[self.accepted[-1][2].item_id]  # type: ignore[index]
            assert isinstance(before, Message) and isinstance(sibling, Message)
            assert (sibling.parent_id, sibling.role) == (before.parent_id, before.role)

    @rule(data=st.data(), who=principals, queue=st.booleans(), lost=st.booleans())
    def regenerate(self, data: st.DataObject, who: Principal, queue: bool, lost: bool) -> None:
        command = cm.ResponseCreate(
            id=self.ground.name(), session=SESSION, parent_id=self.some_parent(data), queue=queue
        )
        self.send(who, command, lost=lost)

    @rule(data=st.data(), who=principals, lost=st.booleans())
    def cancel(self, data: st.DataObject, who: Principal, lost: bool) -> None:
        state = self.ground.state
        known = [*state.open, *state.awaiting, *(waiting.body.id for waiting in state.queue), *state.answers]
        wanted = data.draw(st.sampled_from([*known, ResponseId("resp_none")]))
        ended = wanted in state.answers and wanted not in state.awaiting
        before = len(self.ground.records)
        command = cm.ResponseCancel(id=self.ground.name(), session=SESSION, response_id=wanted)
        self.send(who, command, lost=lost)
        if self.accepted and self.accepted[-1][1] is command:
            assert wanted not in self.ground.state.open
            assert wanted not in self.ground.state.awaiting
            if not lost:
                assert self.accepted[-1][2].noop == ended
                assert (len(self.ground.records) == before) == ended

    @rule(data=st.data(), who=principals, word=words, lost=st.booleans())
    def steer(self, data: st.DataObject, who: Principal, word: str, lost: bool) -> None:
        state = self.ground.state
        known = [*state.open, *state.awaiting, *(waiting.body.id for waiting in state.queue), *state.answers]
        wanted = data.draw(st.sampled_from([*known, ResponseId("resp_none")]))
        said = wanted in state.open or wanted in state.awaiting
        command = cm.ResponseSteer(id=self.ground.name(), session=SESSION, response_id=wanted, content=word)
        self.send(who, command, lost=lost)
        if self.accepted and self.accepted[-1][1] is command and not lost:
            answer = self.accepted[-1][2]
            waits = any(waiting.body.id == answer.response_id for waiting in self.ground.state.queue)
            assert said and (waits or answer.response_id in self.ground.state.open)
            assert waits or wanted not in self.ground.state.open

    @rule(data=st.data(), who=principals, respond=st.booleans(), answers=st.booleans(), lost=st.booleans())
    def whole_turn(self, data: st.DataObject, who: Principal, respond: bool, answers: bool, lost: bool) -> None:
        """What doors of our own send for clients without sessions: items and a response at once, anywhere."""
        ground = self.ground
        items: list[cm.NewItem] = [cm.NewMessage(content="so")] if data.draw(st.booleans()) else []
        parent, after = self.some_parent(data), None
        if answers and ground.state.awaiting:
            turn = data.draw(st.sampled_from(list(ground.state.awaiting.values())))
            items = [cm.NewOutput(call_id=call, output="42") for call in turn.missing] + items
            parent = data.draw(st.sampled_from([turn.last, turn.last, parent]))
        elif data.draw(st.booleans()):
            after, parent = self.some_run(data)[0], UNSET
        command = cm.TurnCreate(
            id=ground.name(),
            session=SESSION,
            items=tuple(items),
            parent_id=parent,
            after_response=after,
            respond=respond,
        )
        self.send(who, command, lost=lost)

    @precondition(lambda self: self.ground.state.awaiting)
    @rule(data=st.data(), who=principals, lost=st.booleans())
    def tool_output(self, data: st.DataObject, who: Principal, lost: bool) -> None:
        missing = [call for waiting in self.ground.state.awaiting.values() for call in waiting.missing]
        call_id = data.draw(st.sampled_from([*missing * 3, CallId("call_none")]))
        command = cm.ToolOutput(id=self.ground.name(), session=SESSION, call_id=call_id, output="42")
        self.send(who, command, lost=lost)

    @rule(data=st.data(), who=principals)
    def erase(self, data: st.DataObject, who: Principal) -> None:
        known = [*self.ground.state.answers, *self.ground.state.open, ResponseId("resp_none")]
        response_id = data.draw(st.sampled_from(known))
        self.send(who, cm.ResponseErase(id=self.ground.name(), session=SESSION, response_id=response_id))

    @precondition(lambda self: self.accepted)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        """The same command again, here or at a later activation: the same answer, and nothing happens."""
        principal, command, answer = data.draw(st.sampled_from(self.accepted))
        before = (len(self.ground.records), len(self.ground.commands), dict(self.ground.running))
        assert self.ground.do(command, principal) == answer
        assert (len(self.ground.records), len(self.ground.commands), dict(self.ground.running)) == before
        other = cm.SessionUpdate(id=command.id, session=SESSION, title="reused")
        self.ground.refused(other, "idempotency_conflict", principal)

    @rule(title=st.sampled_from(["one", None]), delete=st.integers(0, 9))
    def update_or_delete(self, title: str | None, delete: int) -> None:
        if delete or len(self.ground.records) < 25:
            self.send(LOCAL_PRINCIPAL, cm.SessionUpdate(id=self.ground.name(), session=SESSION, title=title))
        else:
            self.send(LOCAL_PRINCIPAL, cm.SessionDelete(id=self.ground.name(), session=SESSION))

    # -- engines and time ------------------------------------------------------------------------------------------

    @rule(data=st.data(), word=words, tail=st.sampled_from(["", "…"]))
    def say(self, data: st.DataObject, word: str, tail: str) -> None:
        response_id, number = self.some_run(data)
        self.ground.input(
            inputs_and_effects.Output(response_id, number, (event_writer.Text(word),), b"\x02\0\0\0", tail)
        )

    @rule(data=st.data(), calls=st.integers(1, 3), end=st.booleans())
    def call(self, data: st.DataObject, calls: int, end: bool) -> None:
        response_id, number = self.some_run(data)
        pieces: list[event_writer.Piece] = []
        for index in range(calls):
            pieces += [event_writer.CallBegin(f"f{index}"), event_writer.CallArguments('{"x":1}')]
        self.ground.input(inputs_and_effects.Output(response_id, number, tuple(pieces), b"\x03\0\0\0"))
        if end and self.ground.running.get(response_id) == number:
            self.ground.finish(response_id)

    @rule(data=st.data(), how=st.sampled_from(["stop", "stop", "stop", "max_output_tokens", "content_filter", "break"]))
    def end(self, data: st.DataObject, how: Any) -> None:
        response_id, number = self.some_run(data)
        if self.ground.running.get(response_id) == number:
            del self.ground.running[response_id]
        if how == "break":
            self.ground.input(
                inputs_and_effects.GenerationFailed(
                    response_id, number, Unavailable("engine_gone", "gone"), Usage(1, 0)
                )
            )
        else:
            refusal = "no more" if how == "content_filter" else None
            self.ground.input(
                inputs_and_effects.GenerationFinished(response_id, number, how, Usage(1, 1), refusal=refusal)
            )

    @rule(data=st.data(), what=st.sampled_from(["fitted", "deadline", "orphaned", "paused"]))
    def time_or_readers(self, data: st.DataObject, what: str) -> None:
        ground = self.ground
        match what:
            case "fitted":
                ground.input(inputs_and_effects.Fitted(*self.some_run(data), 1, self.some_item(data)))
            case "deadline":
                known = [*ground.state.awaiting, *ground.state.answers, ResponseId("resp_none")]
                ground.input(inputs_and_effects.ToolDeadline(data.draw(st.sampled_from(known))))
            case "orphaned":
                ground.input(inputs_and_effects.Orphaned())
            case _:
                ground.paused = True
                ground.input(inputs_and_effects.ResponsesPaused())
                assert not ground.running
                ground.input(inputs_and_effects.ResponsesResumed())
                ground.paused = False

    @rule(data=st.data(), cause=st.sampled_from(["restart", "failover", "handoff"]))
    def crash(self, data: st.DataObject, cause: Any) -> None:
        """Whatever the activation had in memory is gone; the next one begins from a snapshot of any age, or none."""
        self.ground.activate(snapshot_at=data.draw(st.integers(0, len(self.ground.records))), cause=cause)

    # -- what must hold --------------------------------------------------------------------------------------------

    @invariant()
    def holds(self) -> None:
        self.ground.check()

    @invariant()
    def folds(self) -> None:
        self.ground.check_folding(len(self.ground.records) * 2 // 3)

    def teardown(self) -> None:
        """Whatever happened, the session can be brought to rest."""
        ground = self.ground
        while ground.running and not ground.erased:
            for response_id in list(ground.running):
                if response_id in ground.running:
                    ground.finish(response_id)
            for response_id in list(ground.state.awaiting):
                ground.input(inputs_and_effects.ToolDeadline(response_id))
        for response_id in list(ground.state.awaiting):
            ground.input(inputs_and_effects.ToolDeadline(response_id))
        while ground.running:
            ground.finish(next(iter(ground.running)))
        ground.check()
        assert not ground.state.busy


# A failure is shrunk for minutes, and only then shown.
pytestmark = pytest.mark.timeout(420)


class TestAnyHistory(AnyHistory.TestCase):  # type: ignore[misc, valid-type]
    settings = settings(max_examples=30, stateful_step_count=50, deadline=None)


@pytest.mark.slow
class TestManyHistories(AnyHistory.TestCase):  # type: ignore[misc, valid-type]
    settings = settings(max_examples=300, stateful_step_count=50, deadline=None)
