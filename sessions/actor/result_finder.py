"""Looks answers of one session up in the result cache before its engine runs, and has new ones stored.

A response is looked up once, in the step that begins it, after admission and before the append: `response.created` says
whether its answer was in the cache, and the append has the whole answer. Later runs that continue the response are not
looked up. An answer is stored once its end is durable; when text of the session is retracted, its stored answers are
forgotten.
"""

from __future__ import annotations

import msgspec

from sessions.actor.actor_context import ActorContext
from sessions.machine import item_tree
from sessions.machine.inputs_and_effects import Start, Step
from sessions.machine.machine import Machine
from sessions.machine.responses import note_lookup
from sessions.machine.state import Open
from sessions.model import commands as cm
from sessions.model.events import ContentRetracted, ResponseCreated
from sessions.model.generation import generates
from sessions.model.types import ResponseId, SessionKey
from sessions.turn.ledger import Ledger
from sessions.turn.past_texts import prompt_text
from sessions.turn.result_cache import ResultCache, ResultLookup, is_deterministic, request_name


class ResultFinder:
    """Looks up and stores the answers of one actor in the result cache."""

    def __init__(
        self, key: SessionKey, machine: Machine, ledger: Ledger, context: ActorContext, results: ResultCache
    ) -> None:
        self._key, self._machine, self._ledger, self._context, self._results = key, machine, ledger, context, results
        self._lookups: dict[ResponseId, tuple[ResultLookup, Open, int]] = {}  # of open responses, with their run

    def may_find(self, command: cm.ActorCommand) -> bool:
        """Returns whether the cache could have the answer to a command: the command begins one that is deterministic,
        and the tenant uses the cache."""
        info = self._machine.state.info
        if not isinstance(command, cm.TurnCommand) or not self._results.serves(self._key.tenant):
            return False
        standing = info.temperature if info is not None else None
        return command.seed is not None or (standing if command.temperature is None else command.temperature) == 0

    async def look_up(self, step: Step) -> list[ResponseId]:
        """Looks up the responses that a step begins. Returns those whose answers are in the cache."""
        state, cached = self._machine.state, list[ResponseId]()
        starts = [effect for effect in step.effects if isinstance(effect, Start)]
        if not starts or not self._results.serves(self._key.tenant):
            return cached
        begun = {each.event.response_id for each in step.records if isinstance(each.event, ResponseCreated)}
        for start in starts:
            open_ = state.open.get(start.response_id) if start.response_id in begun else None
            lookup = await self._find(open_) if open_ is not None else None
            if open_ is not None and lookup is not None:
                note_lookup(state, step, open_.id, lookup.outcome)
                self._lookups[open_.id] = lookup, open_, start.generation
                if lookup.answer is not None:
                    cached.append(open_.id)
        return cached

    async def _find(self, open_: Open) -> ResultLookup | None:
        context, model = self._context, self._machine.other_model(open_)
        engine = context.engine.info.smaller if model else context.engine.info
        if engine is None or not is_deterministic(open_) or not generates(open_.body.request):
            return None
        try:
            plan = await self._ledger.plan(open_)
        except Exception:  # noqa: BLE001 - its run meets it too, and reports it
            return None
        policy, tokenizer = context.filters.version(open_.principal), context.engine.tokenizer.fingerprint
        name = request_name(open_, plan, engine, tokenizer=tokenizer, policy=policy, tools=self._ledger.tools)
        return await self._results.find(self._key, name, plan)

    def lookup_of(self, start: Start) -> ResultLookup | None:
        """Returns the lookup that was made for a response's first run. For a later run of the response it returns None
        and drops the lookup, so that the answer is not stored."""
        lookup, _, generation = self._lookups.get(start.response_id, (None, None, 0))
        if lookup is not None and generation != start.generation:
            del self._lookups[start.response_id]
            return None
        return lookup

    def after(self, step: Step) -> None:
        """Stores the answers that ended in a durable step. If the step retracts text, the session's stored answers are
        forgotten."""
        for row in step.usage:
            lookup, open_, _ = self._lookups.pop(row.response_id, (None, None, 0))
            if lookup is not None and open_ is not None and row.status == "completed" and lookup.recorded is not None:
                texts = [*self._texts_before(open_), lookup.recorded.text]
                self._context.spawn(self._results.store(lookup, open_.principal, texts))
        if any(isinstance(record.event, ContentRetracted) for record in step.records):
            self._context.spawn(self._results.forget_session(self._key))

    def _texts_before(self, open_: Open) -> list[str]:
        """Returns the texts from which an answer was made: those by people, tools and models, and the session's
        settings."""
        state = self._machine.state
        texts = [prompt_text(item).text for item in item_tree.branch(state, open_.body.parent_id)]
        if state.info is not None:
            texts += [state.info.instructions or "", msgspec.json.encode(state.info.tools).decode()]
            texts += state.info.memories or ()
        return texts
