"""Looks answers of one session up in the result cache before its engine is asked, and has new ones kept.

A lookup comes before admission, which has no say about an answer that is here, and stands between a response's
beginning and its append: `response.created` says what came of it, and the append has the whole answer. An answer is
handed to the cache once its end is durable, and only if it ended by itself.
What is taken back from the session is forgotten with everything else that came from it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec
from msgspec import UNSET

from sessions.actor.actor_context import ActorContext
from sessions.machine import item_tree
from sessions.machine.inputs_and_effects import Command, Start, Step
from sessions.machine.machine import Machine
from sessions.machine.responses import mark_looked_up, other_model
from sessions.machine.state import Open, State
from sessions.model import commands as cm
from sessions.model.events import ContentRetracted
from sessions.model.generation import generates
from sessions.model.types import FunctionCall, FunctionCallOutput, Item, Principal, ResponseId, SessionKey, UnixMs
from sessions.turn.ledger import Ledger
from sessions.turn.result_cache import RequestContext, ResultCache, ResultLookup, is_deterministic, request_name
from sessions.turn.token_memo import MemoTokenizer

_OPEN_MAX: Final = 64  # answers that are recorded at a time


class _Ahead(NamedTuple):
    """What was looked up for a response before the command that begins it was applied."""

    response_id: ResponseId
    lookup: ResultLookup
    command: cm.ActorCommand
    model: str


class ResultFinder:
    """One actor's."""

    def __init__(
        self,
        key: SessionKey,
        machine: Machine,
        ledger: Ledger,
        world: ActorContext,
        results: ResultCache,
        tokenizer: MemoTokenizer | None,
    ) -> None:
        self._key = key
        self._machine = machine
        self._ledger = ledger
        self._world = world
        self._results = results
        self._tokenizer = tokenizer
        self._ahead: _Ahead | None = None
        self._lookups: dict[ResponseId, tuple[ResultLookup, Open]] = {}  # of answers that are being written

    async def find_ahead(self, input: Command, now: UnixMs) -> bool:
        """Looks up the answer that a command would begin, before anything of it is decided. Returns whether it is
        there; what was looked up is used where the command begins it unchanged."""
        self._ahead = None
        if input.refused is not None or not self._may_find(input.command):
            return False
        tried = self._machine.try_turn(input, now)
        if tried is None:
            return False
        state, step = tried
        starts = [effect for effect in step.effects if isinstance(effect, Start)]
        open_ = state.open.get(starts[0].response_id) if len(starts) == 1 else None
        if open_ is None or not is_deterministic(open_) or not generates(open_.body.request):
            return False
        ledger = self._ledger.of(state)
        lookup = await self._find(open_, state, ledger)
        self._ledger.learn(ledger)
        if lookup is None:
            return False
        self._ahead = _Ahead(open_.id, lookup, input.command, input.model)
        return lookup.answer is not None

    def changed(self, input: Command) -> None:
        """The command as it is applied: what was looked up is of no use where that begins another answer."""
        ahead = self._ahead
        if ahead is not None:
            same = input.command is ahead.command or input.command == ahead.command
            self._ahead = ahead if same and input.model == ahead.model else None

    def needs_engine(self, command: cm.ActorCommand) -> bool:
        """Whether the answer that a command begins is surely one that the engine writes: it was not there."""
        return self._ahead is not None or not self._may_find(command)

    def _may_find(self, command: cm.ActorCommand) -> bool:
        """Whether the answer that a command begins may be one that is here already."""
        info = self._machine.state.info
        if not isinstance(command, cm.TurnCommand) or not self._results.serves(self._key.tenant):
            return False
        temperature = command.temperature
        if temperature is None and info is not None and info.temperature is not UNSET:
            temperature = info.temperature
        return temperature == 0 or command.seed is not None

    async def look_up(self, step: Step) -> list[ResponseId]:
        """Looks up the responses that a step begins, before it is appended. Returns those whose answers are there."""
        found = list[ResponseId]()
        ahead, self._ahead = self._ahead, None
        if not self._results.serves(self._key.tenant):
            return found
        for effect in step.effects:
            open_ = self._machine.state.open.get(effect.response_id) if isinstance(effect, Start) else None
            if open_ is None or open_.tokens or open_.drafts:
                continue
            if not is_deterministic(open_) or not generates(open_.body.request):
                continue
            if ahead is not None and ahead.response_id == open_.id:
                lookup: ResultLookup | None = ahead.lookup
            else:
                lookup = await self._find(open_, self._machine.state, self._ledger)
            if lookup is not None:
                self._lookups[open_.id] = lookup, open_
                mark_looked_up(self._machine.state, step, open_.id, lookup.outcome)
                if lookup.answer is not None:
                    found.append(open_.id)
        return found

    async def _find(self, open_: Open, state: State, ledger: Ledger) -> ResultLookup | None:
        world, model = self._world, other_model(state, open_)
        info = world.engine.info.smaller if model else world.engine.info
        if info is None or len(self._lookups) >= _OPEN_MAX:
            return None
        try:
            plan = await ledger.plan(open_)
        except Exception:  # noqa: BLE001 - its run meets it too, and reports it
            return None
        context = RequestContext(
            engine=info,
            tokenizer=world.engine.tokenizer.fingerprint,
            policy=world.filters.version(open_.principal),
            tools=ledger.tools,
        )
        return await self._results.find(self._key, request_name(open_, plan, context), plan)

    def lookup_of(self, open_: Open) -> ResultLookup | None:
        """What was looked up for a response whose run begins now. One that goes on is its engine's: part of it would be
        missing in what is kept."""
        if open_.tokens or open_.drafts:
            self._lookups.pop(open_.id, None)
        looked_up = self._lookups.get(open_.id)
        return looked_up[0] if looked_up is not None else None

    def after(self, step: Step) -> None:
        """A step is durable: has the answers kept that ended with it, and what was taken back forgotten (that stands in
        its rows of the audit log too)."""
        for row in step.usage:
            looked_up = self._lookups.pop(row.response_id, None)
            if looked_up is None or row.status != "completed":
                continue
            lookup, open_ = looked_up
            if lookup.recorder is not None and lookup.recorder.answer is not None:
                texts = [*self._texts_before(open_), lookup.recorder.answer.text]
                self._world.spawn(self._store(lookup, open_.principal, texts))
        if any(isinstance(record.event, ContentRetracted) for record in step.records):
            self._world.memos.forget(self._key.tenant)
            self._world.spawn(self._results.forget_session(self._key))

    async def _store(self, lookup: ResultLookup, principal: Principal, texts: list[str]) -> None:
        await self._results.store(lookup, principal, texts)
        if lookup.stored and self._tokenizer is not None:
            self._tokenizer.keep()

    def _texts_before(self, open_: Open) -> list[str]:
        """All that people, tools and models wrote and an answer was made of."""
        state = self._machine.state
        texts = [_text(item) for item in item_tree.branch(state, open_.body.parent_id)]
        if state.info is not None:
            texts += [state.info.instructions or "", msgspec.json.encode(state.info.tools).decode()]
            texts += state.info.memories or ()
        return texts


def _text(item: Item) -> str:
    match item:
        case FunctionCall():
            return item.arguments
        case FunctionCallOutput():
            return item.output
    return item.text
