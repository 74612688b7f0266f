"""Looks answers of one session up in the result cache before its engine is asked, and has new ones kept.

A lookup stands between a response's beginning and its append, so `response.created` says what came of it, and the turn
begins with what was found. An answer is handed to the cache once its end is durable, and only if it ended by itself.
What is taken back from the session is forgotten with everything else that came from it.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET

from sessions.actor.actor_context import ActorContext
from sessions.machine import item_tree
from sessions.machine.inputs_and_effects import Start, Step
from sessions.machine.machine import Machine
from sessions.machine.responses import mark_looked_up
from sessions.machine.state import Open
from sessions.model import commands as cm
from sessions.model.events import ContentRetracted
from sessions.model.generation import generates
from sessions.model.types import FunctionCall, FunctionCallOutput, Item, Principal, ResponseId, SessionKey
from sessions.turn.ledger import Ledger
from sessions.turn.result_cache import RequestContext, ResultCache, ResultLookup, is_deterministic, request_name

_OPEN_MAX: Final = 64  # answers that are recorded at a time


class ResultFinder:
    """One actor's."""

    def __init__(
        self, key: SessionKey, machine: Machine, ledger: Ledger, world: ActorContext, results: ResultCache
    ) -> None:
        self._key = key
        self._machine = machine
        self._ledger = ledger
        self._world = world
        self._results = results
        self._lookups: dict[ResponseId, tuple[ResultLookup, Open]] = {}  # of answers that are being written

    def may_find(self, command: cm.ActorCommand) -> bool:
        """Whether the answer that a command begins may be one that is here already."""
        info = self._machine.state.info
        if not isinstance(command, cm.TurnCommand) or not self._results.serves(self._key.tenant):
            return False
        temperature = command.temperature
        if temperature is None and info is not None and info.temperature is not UNSET:
            temperature = info.temperature
        return temperature == 0 or command.seed is not None

    async def look_up(self, step: Step) -> None:
        """Looks up the responses that a step begins, before it is appended."""
        if not self._results.serves(self._key.tenant):
            return
        for effect in step.effects:
            open_ = self._machine.state.open.get(effect.response_id) if isinstance(effect, Start) else None
            if open_ is None or open_.tokens or open_.drafts:
                continue
            if not is_deterministic(open_) or not generates(open_.body.request):
                continue
            lookup = await self._find(open_)
            if lookup is not None:
                self._lookups[open_.id] = lookup, open_
                mark_looked_up(self._machine.state, step, open_.id, lookup.outcome)

    async def _find(self, open_: Open) -> ResultLookup | None:
        world, model = self._world, self._machine.other_model(open_)
        info = world.engine.info.smaller if model else world.engine.info
        if info is None or len(self._lookups) >= _OPEN_MAX:
            return None
        try:
            plan = await self._ledger.plan(open_)
        except Exception:  # noqa: BLE001 - its run meets it too, and reports it
            return None
        context = RequestContext(
            engine=info,
            tokenizer=world.engine.tokenizer.fingerprint,
            policy=world.filters.version(open_.principal),
            tools=self._ledger.tools,
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
            self._world.spawn(self._results.forget_session(self._key))

    async def _store(self, lookup: ResultLookup, principal: Principal, texts: list[str]) -> None:
        await self._results.store(lookup, principal, texts)

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
