"""Ground for the machine to stand on: a journal that is a list, engines that are numbers, and what must always hold.

`Ground` does what an actor does around a machine (append, then answer, then start and stop), without tasks or time, and
looks at the log with eyes of its own: `check` knows the protocol, not the code.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Literal

import msgspec

from sessions.machine import event_writer, inputs_and_effects
from sessions.machine.machine import Machine
from sessions.machine.state import State, pack_state, replay, unpack_state
from sessions.model import commands as cm
from sessions.model import events as ev
from sessions.model.errors import SessileError
from sessions.model.journal_types import CommandRecord, Head, HeadPatch, Loaded, Snapshot, UsageRow
from sessions.model.types import (
    LOCAL_PRINCIPAL,
    CommandId,
    Epoch,
    FunctionCall,
    ItemId,
    Message,
    OutputText,
    Principal,
    Refusal,
    ResponseId,
    SessionId,
    SessionKey,
    TenantId,
    UnixMs,
    Usage,
    words_of,
)

SESSION = SessionId("s1")
KEY = SessionKey(TenantId("local"), SESSION)
FINGERPRINT = "tok-1"
TERMINAL = ev.ResponseCompleted | ev.ResponseIncomplete | ev.ResponseFailed
Outcome = cm.Ok | SessileError


class Ground:
    def __init__(self, *, fingerprint: str = FINGERPRINT, smaller_model: str = "", takes_tools: bool = True) -> None:
        self.default_model = "sim"  # of the replica where it is activated next
        self.records: list[ev.Record] = []
        self.commands: list[CommandRecord] = []
        self.usage: list[UsageRow] = []
        self.patch: HeadPatch | None = None
        self.now = 1_000_000
        self.running: dict[ResponseId, int] = {}
        self.armed: set[ResponseId] = set()
        self.paused = False
        self.erased = False
        self.fingerprint = fingerprint
        self.smaller_model = smaller_model
        self.takes_tools = takes_tools
        self.model = ""  # what admission chooses and tells for every command from now on
        self.service: dict[str, Any] | None = None
        self.alias = ""  # of the session that a command makes
        self.adopts = ""  # what its model is called from a command on
        self._numbers = 0
        self.machine = self._machine(None)

    # -- activations ---------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        return self.machine.state

    def head(self) -> Head:
        return Head(
            key=KEY,
            epoch=Epoch("e1"),
            fence=1,
            incarnation="j1",
            top=len(self.records),
            user=self.patch.user if self.patch is not None else None,
            listed=self.patch.listed if self.patch is not None else True,
            created_at=UnixMs(0),
            updated_at=UnixMs(0),
        )

    def folded(self, snapshot_at: int | None = None) -> State:
        """The state that the log describes; by way of a snapshot as it was at an offset."""
        snapshot = None
        if snapshot_at:
            prefix = Loaded(self.head(), None, tuple(self.records[:snapshot_at]), (), True)
            snapshot = Snapshot(snapshot_at, pack_state(replay(prefix)))
        return replay(Loaded(self.head(), snapshot, tuple(self.records[snapshot_at or 0 :]), (), True))

    def _machine(self, snapshot_at: int | None) -> Machine:
        return Machine(
            self.folded(snapshot_at),
            self.commands,
            default_model=self.default_model,
            smaller_model=self.smaller_model,
            fingerprint=self.fingerprint,
            takes_tools=self.takes_tools,
        )

    def activate(
        self,
        *,
        snapshot_at: int | None = None,
        cause: Literal["restart", "failover", "handoff"] = "failover",
        fingerprint: str | None = None,
    ) -> inputs_and_effects.Step:
        """Whatever was in memory is lost; another activation begins from the log, perhaps with another tokenizer."""
        self.fingerprint = fingerprint or self.fingerprint
        self.machine = self._machine(snapshot_at)
        self.running.clear()
        self.armed.clear()
        self.paused = False
        return self.input(inputs_and_effects.Activated("replica-2", cause))

    # -- steps ---------------------------------------------------------------------------------------------------

    def input(self, input: inputs_and_effects.Input, *, durable: bool = True) -> inputs_and_effects.Step:
        self.now += 10
        step = self.machine.step(input, UnixMs(self.now))
        if durable:
            self._append(step)
            for effect in step.effects:
                self._perform(effect)
        return step

    def _append(self, step: inputs_and_effects.Step) -> None:
        assert [record.offset for record in step.records] == list(
            range(len(self.records) + 1, len(self.records) + 1 + len(step.records))
        )
        assert not (self.erased and step.records), "something was written behind session.deleted"
        self.records += step.records
        self.commands += step.commands
        self.usage += step.usage
        self.patch = step.head or self.patch
        # What a journal does to records: nothing of them is lost or changed by being written down.
        packed = msgspec.msgpack.encode(step.records)
        assert msgspec.msgpack.decode(packed, type=list[ev.Record]) == step.records

    def _perform(self, effect: inputs_and_effects.Effect) -> None:
        match effect:
            case inputs_and_effects.Start():
                self.running[effect.response_id] = effect.generation
            case inputs_and_effects.Stop():
                self.running.pop(effect.response_id, None)
            case inputs_and_effects.ArmToolDeadline():
                self.armed.add(effect.response_id)
            case inputs_and_effects.Erase():
                self.erased = True
                self.running.clear()

    # -- what clients do -----------------------------------------------------------------------------------------

    def name(self) -> CommandId:
        self._numbers += 1
        return CommandId(f"c{self._numbers}")

    def do(self, command: cm.ActorCommand, principal: Principal = LOCAL_PRINCIPAL, *, durable: bool = True) -> Outcome:
        prepared = None
        if isinstance(command, cm.MessageCreate | cm.MessageEdit | cm.ResponseSteer | cm.ToolOutput):
            prepared = inputs_and_effects.Prepared(b"\x01\0\0\0", self.fingerprint)
        input = inputs_and_effects.Command(principal, command, cm.command_digest(command), prepared)
        input = msgspec.structs.replace(
            input, model=self.model, service=self.service, alias=self.alias, adopts=self.adopts
        )
        step = self.input(input, durable=durable)
        assert step.answer is not None, "a command was not answered"
        return step.answer

    def ok(self, command: cm.ActorCommand, principal: Principal = LOCAL_PRINCIPAL) -> cm.Ok:
        answer = self.do(command, principal)
        assert isinstance(answer, cm.Ok), answer
        return answer

    def refused(self, command: cm.ActorCommand, code: str, principal: Principal = LOCAL_PRINCIPAL) -> SessileError:
        before = len(self.records)
        answer = self.do(command, principal)
        assert isinstance(answer, SessileError) and answer.code == code, answer
        assert len(self.records) == before, "a refused command has written something"
        return answer

    def create(self, **more: Any) -> cm.Ok:
        return self.ok(cm.SessionCreate(id=self.name(), session=SESSION, **more))

    def say(self, content: str = "hello", **more: Any) -> cm.Ok:
        return self.ok(cm.MessageCreate(id=self.name(), session=SESSION, content=content, **more))

    def cancel(self, response_id: ResponseId) -> cm.Ok:
        return self.ok(cm.ResponseCancel(id=self.name(), session=SESSION, response_id=response_id))

    # -- what engines do -----------------------------------------------------------------------------------------

    def write(self, response_id: ResponseId, *pieces: event_writer.Piece, tail: str = "") -> inputs_and_effects.Step:
        return self.input(
            inputs_and_effects.Output(response_id, self.running[response_id], pieces, b"\x02\0\0\0" * len(pieces), tail)
        )

    def text(self, response_id: ResponseId, text: str = "well", *, tail: str = "") -> inputs_and_effects.Step:
        return self.write(response_id, event_writer.Text(text), tail=tail)

    def finish(
        self,
        response_id: ResponseId,
        reason: Literal["stop", "max_output_tokens", "content_filter"] = "stop",
        *,
        refusal: str | None = None,
    ) -> inputs_and_effects.Step:
        generation = self.running.pop(response_id)
        return self.input(
            inputs_and_effects.GenerationFinished(response_id, generation, reason, Usage(3, 2), refusal=refusal)
        )

    def answer(self, response_id: ResponseId, text: str = "well") -> None:
        self.text(response_id, text)
        self.finish(response_id)

    # -- what must hold ------------------------------------------------------------------------------------------

    def check(self) -> None:
        state = self.state
        by_response: dict[ResponseId, list[ev.ResponseEvent]] = defaultdict(list)
        seen: set[ItemId] = set()
        newest: ItemId | None = None
        for record in self.records:
            event = record.event
            if isinstance(event, ev.ResponseEvent):
                by_response[event.response_id].append(event)
            if isinstance(event, ev.ItemCreated | ev.OutputItemAdded):
                item = event.item
                assert item.id not in seen, f"{item.id} was made twice"
                assert item.parent_id is None or item.parent_id in seen, "an item before its parent"
                seen.add(item.id)
                newest = item.id
            if isinstance(event, ev.SessionDeleted):
                assert record is self.records[-1]
        assert seen == set(state.items) and newest == state.newest
        living = set(state.open) | {waiting.body.id for waiting in state.queue}
        for response_id, events in by_response.items():
            self._check_response(response_id, events, alive=response_id in living)
        assert living <= set(by_response)
        self._check_branches(state)
        self._check_queue(state)
        billed = [row.response_id for row in self.usage]
        ended = [
            response_id
            for response_id, events in by_response.items()
            if isinstance(events[-1], TERMINAL) and any(isinstance(each, ev.ResponseCreated) for each in events)
        ]
        assert sorted(billed) == sorted(ended), "one usage row per response that ran and ended"
        if self.records:
            assert self.patch is not None and self.patch.open == state.busy
        if not self.paused:
            assert set(self.running) == set(state.open), "every open response has a run, and nothing else"
        assert set(state.awaiting) <= self.armed
        assert len({(record.principal_id, record.command_id) for record in self.commands}) == len(self.commands)

    def check_folding(self, snapshot_at: int) -> None:
        """Nothing in memory is true that the log does not say, whichever way it is folded."""
        packed = pack_state(self.state)
        assert pack_state(self.folded()) == packed
        assert pack_state(self.folded(snapshot_at)) == packed
        again = unpack_state(packed)
        assert again is not None and pack_state(again) == packed

    def _check_response(self, response_id: ResponseId, events: list[ev.ResponseEvent], *, alive: bool) -> None:
        assert [event.sequence_number for event in events] == list(range(len(events)))
        terminal = [event for event in events if isinstance(event, TERMINAL)]
        assert len(terminal) == (0 if alive else 1), f"{response_id} ended {len(terminal)} times"
        if terminal:
            assert events[-1] is terminal[0], "something was written for a response that had ended"
        output = read_output(events)
        if terminal:
            body = terminal[0].response
            assert body.usage is not None
            assert [item.id for item in body.output] == [item.id for item in output]
            for item in body.output:
                assert isinstance(item, Message | FunctionCall) and item.status in ("completed", "incomplete")
                if isinstance(terminal[0], ev.ResponseCompleted):
                    assert item.status == "completed"
                if response_id not in self.erased_responses():
                    assert self.state.items[item.id] == item
                elif isinstance(kept := self.state.items[item.id], Message):
                    said = [words_of(p) for p in kept.content]
                    assert "".join(said) == "", "what was erased is shown"
                else:
                    assert isinstance(kept, FunctionCall) and kept.arguments == "{}", "what was erased is shown"
            assert list(body.output) == output

    def erased_responses(self) -> set[ResponseId]:
        events = [record.event for record in self.records]
        return {event.response_id for event in events if isinstance(event, ev.ContentRetracted)}

    def _check_branches(self, state: State) -> None:
        for open_ in state.open.values():
            at = open_.body.parent_id
            while at is not None:
                maker = state.made_by.get(at)
                assert maker is None or (maker not in state.open and maker not in state.awaiting), "a busy branch"
                at = state.items[at].parent_id

    def _check_queue(self, state: State) -> None:
        alive = set(state.open) | set(state.awaiting)
        for waiting in state.queue:
            assert waiting.after in alive, f"{waiting.body.id} waits for {waiting.after}, which will never end"
            alive.add(waiting.body.id)
        assert len({waiting.after for waiting in state.queue}) == len(state.queue), "two wait for the same"


def read_output(events: list[ev.ResponseEvent]) -> list[Message | FunctionCall]:
    """The output items as a client accumulates them from deltas, checked against every `done` on the way."""
    items: list[Message | FunctionCall] = []
    texts: dict[tuple[int, int], str] = {}
    parts: dict[tuple[int, int], type] = {}
    for event in events:
        match event:
            case ev.OutputItemAdded():
                assert event.output_index == len(items)
                assert isinstance(event.item, Message | FunctionCall) and event.item.status == "in_progress"
                items.append(event.item)
                texts[event.output_index, 0] = ""
            case ev.ContentPartAdded():
                place = (event.output_index, event.content_index)
                assert place not in parts and items[-1].id == event.item_id
                assert event.content_index == sum(1 for index, _ in parts if index == event.output_index)
                parts[place] = type(event.part)
                texts[place] = ""
            case ev.OutputTextDelta() | ev.RefusalDelta():
                expected = OutputText if isinstance(event, ev.OutputTextDelta) else Refusal
                assert parts[event.output_index, event.content_index] is expected
                texts[event.output_index, event.content_index] += event.delta
            case ev.ArgumentsDelta():
                texts[event.output_index, 0] += event.delta
            case ev.OutputTextDone():
                assert texts[event.output_index, event.content_index] == event.text
            case ev.RefusalDone():
                assert texts[event.output_index, event.content_index] == event.refusal
            case ev.ArgumentsDone():
                assert texts[event.output_index, 0] == event.arguments
            case ev.ContentPartDone():
                assert isinstance(event.part, parts[event.output_index, event.content_index])
            case ev.OutputItemDone():
                assert isinstance(event.item, Message | FunctionCall)
                assert event.item.id == items[event.output_index].id
                if isinstance(event.item, Message):
                    said = [words_of(p) for p in event.item.content]
                    indices = [content for index, content in parts if index == event.output_index]
                    assert said == [texts[event.output_index, content] for content in indices]
                else:
                    assert event.item.arguments == texts[event.output_index, 0]
                items[event.output_index] = event.item
            case _:
                pass
    return items
