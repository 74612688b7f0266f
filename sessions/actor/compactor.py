"""Summarises a session's older messages while nobody waits for it, once the shorter context is prefilled.

After an answer, and if the conversation's policy is to compact, the model gets the conversation as it is with an
instruction at its end: all but the instruction is in the session's KV, and the turn that follows cuts off what was
added. A turn of the session, or a retraction, cancels the summary at once and does not wait for it; after the next
answer it is tried again. It is behind everybody in the engine's queue (`PRIORITY`), and none is written while brownout
allows no extras. A summary is an output: the filters of the tenant's policy judge it, redact it, or have it thrown
away. Without a summary prompts leave the oldest turns out, as they do for everybody (`sessions.turn.context_fitting`).

A written summary takes effect only once the beginning of prompts with it is prefilled, beside the session's other KV:
until then, however busy the engine is, turns go on from the whole conversation, whose KV is there. It takes effect at
once if a command requested it, or if the context window is nearly full.

A summary that is being written or waits is given up if somebody undoes a summary, because it may have read that one;
and if the policy changes, unless a command requested it.

Summaries are not billed. One that was requested counts towards its requester's limits, with all the pieces that it is
written in, even if it is given up. Decides nothing about the log: what it has written is an input of the machine
(`CompactionWritten`).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import aclosing
from typing import Final, Literal, NamedTuple

import msgspec
import structlog

from sessions.actor.actor_context import ActorContext
from sessions.actor.weak_calls import WeakCall
from sessions.backoff import Backoff
from sessions.machine.inputs_and_effects import Compact, CompactionGivenUp, CompactionWritten, Input, Prepared
from sessions.machine.responses import derive
from sessions.machine.state import State
from sessions.model.errors import Conflict, Internal, SessileError
from sessions.model.generation import BACKGROUND_PRIORITY, Chunk, Finish, GenerationRequest
from sessions.model.types import ItemId, Principal, ResponseId, Sampling, Tokens, Usage, pack_tokens
from sessions.ports import ChatMessage
from sessions.turn.branch_tokens import summary_message
from sessions.turn.call_formats import FIELD_THOUGHT_CLOSE, FIELD_THOUGHT_OPEN
from sessions.turn.channels import MARKS
from sessions.turn.ledger import CompactionPlan, Ledger
from sessions.turn.screening import screened

INSTRUCTION: Final = (
    "Summarise our conversation so far, so that it can go on without the messages above. Keep every name, number, date,"
    " fact, decision, preference, promise and open question, each in a short line, in the language of the conversation."
    " Answer with the summary and nothing else."
)
PRIORITY: Final = BACKGROUND_PRIORITY
SUMMARY_S: Final = 300.0
PREFILL_WAIT_S: Final = 600.0  # for an engine without an idle slot; then the next answer begins anew
PREFILL_RETRY_S: Final = 1.0  # and twice as long each time, up to
PREFILL_RETRY_MAX_S: Final = 15.0

_MARK: Final = re.compile("|".join(map(re.escape, MARKS)))
_THOUGHT: Final = re.compile(
    rf"\A\s*<think>.*?(?:</think>|\Z)|{FIELD_THOUGHT_OPEN}.*?(?:{FIELD_THOUGHT_CLOSE}|\Z)", re.DOTALL
)
_SENTENCES: Final = re.compile(r"(?<=[.!?\n])")
_CUT_SHORT: Final = re.compile(r"(?<=[.!?\n])[^.!?\n]*\Z")

log = structlog.get_logger(__name__)


class _Waiting(NamedTuple):
    """A summary that is not in force yet, with the ids of those that were in force when it was written."""

    written: CompactionWritten
    in_force: tuple[ItemId, ...]


class Compactor:
    """Writes the summaries of one session for its actor; at most one is under way."""

    def __init__(self, state: State, ledger: Ledger, context: ActorContext, post: Callable[[Input], None]) -> None:
        self._state = state
        self._ledger = ledger
        self._context = context
        self._post = WeakCall(post)
        self._task: asyncio.Task[None] | None = None
        self._requested: Compact | None = None
        self._spent = Usage(0, 0)  # on the requested compaction
        self._principal: Principal | None = None
        self._waiting: _Waiting | None = None
        self._leaving = False
        self._prefilled: ItemId | None = None  # the summary whose prompts' KV is computed

    def request(self, effect: Compact) -> None:
        """Starts the compaction that a command requested, now or after the turn that is open."""
        self._give_up(Internal("compaction_failed", "Another compaction was requested meanwhile."))
        self._requested = effect
        if self._leaving:
            self.leave()
        else:
            self.consider(effect.principal)

    def consider(self, principal: Principal | None = None, *, prefill: bool = False) -> None:
        """Starts a compaction if one is due, in place of one that is under way. With `prefill`, if none is due, it
        computes the KV of the newest branch. `principal` is in whose name the engine runs; None: that of the last
        call."""
        self.stop()
        self._principal = principal or self._principal
        compacts = self._ledger.policy == "compact"
        if not compacts:
            self._waiting = None
        due = self._requested is not None or compacts
        if self._principal is None or self._state.busy or self._state.deleted or not (due or prefill):
            return
        self._task = self._context.spawn(self._run(self._principal, prefill))

    def stop(self) -> None:
        """Cancels the compaction under way; a requested one is started again later."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def resume(self) -> None:
        """Starts the requested compaction again, or the prefill that a summary waits for, if it was cancelled, or put
        off by a turn that has ended. Does nothing while a turn is open."""
        if self._state.busy:
            return
        idle = self._task is None or (self._task.done() and self._requested is not None)
        if idle and (self._requested is not None or self._waiting is not None):
            self.consider()

    def leave(self) -> None:
        """Gives up every compaction, requested ones too, because the session leaves this replica."""
        self._leaving = True
        self._abandon("The session moved meanwhile: request it again.")

    def come_back(self) -> None:
        """Allows compactions again: the session stays here after all."""
        self._leaving = False

    def undone(self, name: ItemId | None) -> None:
        """Gives up the compaction under way, which may have read the summary that was undone. If the undo named a
        summary that is not in force, `name` is its id, and only a requested compaction with this id is given up."""
        if name is None or (self._requested is not None and name == self._requested.compaction_id):
            self._abandon("It was undone before it was in force.")

    def _abandon(self, why: str) -> None:
        self.stop()
        self._waiting = None
        self._give_up(Internal("compaction_failed", why))

    async def _run(self, principal: Principal, prefill: bool) -> None:
        requested, key = self._requested, self._state.key
        try:
            if requested is None and await self._put_in_force():
                return
            async with asyncio.timeout(SUMMARY_S):
                written = await self._write(principal, requested)
            if written is not None and requested is None:
                self._context.metrics.compactions.add("written")
                self._waiting = _Waiting(written, tuple(self._state.compactions))
                await self._put_in_force()
                return
        except (SessileError, TimeoutError) as error:
            self._failed(requested, error)
            return
        except Exception as error:  # the shell's boundary: whatever an engine or a filter does, the session goes on
            log.exception("compaction_failed", session=key.session)
            self._failed(requested, error)
            return
        if requested is not None and written is not None:
            self._context.metrics.compactions.add("written")
            if written.compaction_id == requested.compaction_id:
                self._requested, self._spent = None, Usage(0, 0)
                written = msgspec.structs.replace(written, last=True)
            self._post(written)
        elif requested is not None:
            self._give_up(Conflict("nothing_to_compact", "There is nothing to summarise here."))
        elif prefill and self._gives_extras and self._prefilled not in self._state.compactions:
            await self._prefill(await self._ledger.whole(self._state.newest))

    async def _put_in_force(self) -> bool:
        """Puts the waiting summary in force once its prompts are prefilled. Returns False if no summary waits, or it
        does not hold any more; True if it is in force or goes on waiting."""
        state, waiting = self._state, self._waiting
        if waiting is None:
            return False
        written = waiting.written
        holds = waiting.in_force == tuple(state.compactions) and state.retracted_at <= written.at
        short = await self._ledger.shortened(state.newest, written) if holds else None
        if short is not None and not short.full:
            if not self._gives_extras or not await self._prefill(short.prompt):
                return True
            self._prefilled = written.compaction_id
        if short is None or self._ledger.policy != "compact":
            self._waiting = None
            return False
        after = len(short.prompt) + len(self._context.engine.tokenizer.answer_opening)
        self._post(msgspec.structs.replace(written, tokens_before=short.tokens_before, tokens_after=after))
        return True

    async def _prefill(self, prompt: Tokens) -> bool:
        """Computes the KV of a prompt, for up to PREFILL_WAIT_S; a turn that comes cancels it. Returns whether the KV
        is there. Raises nothing, because the turn itself reports what fails."""
        key, loop = self._state.key, asyncio.get_running_loop()
        pause, until_s = Backoff(PREFILL_RETRY_S, PREFILL_RETRY_MAX_S), loop.time() + PREFILL_WAIT_S
        try:
            while not await self._context.engine.warm(key, prompt, background=True):
                if loop.time() >= until_s:
                    log.info("prefill_timed_out", session=key.session)
                    return False
                await asyncio.sleep(pause.next_s())
        except Exception:
            log.exception("prefill_failed", session=key.session)
            return False
        return True

    def _failed(self, requested: Compact | None, error: Exception) -> None:
        self._context.metrics.compactions.add("failed")
        log.info("compaction_not_written", session=self._state.key.session, error=str(error))
        if requested is None or requested is not self._requested:
            return
        if isinstance(error, TimeoutError):
            error = Internal("compaction_failed", "Writing the summary took too long.")
        if not isinstance(error, SessileError):
            error = Internal("compaction_failed", "The summary could not be written.")
        self._give_up(error)

    def _give_up(self, error: SessileError) -> None:
        """Gives up the requested compaction, if there is one, and reports `error` as the reason."""
        requested, spent = self._requested, self._spent
        self._requested, self._spent = None, Usage(0, 0)
        if requested is not None:
            self._post(CompactionGivenUp(requested.compaction_id, error, spent.input_tokens + spent.output_tokens))

    @property
    def _gives_extras(self) -> bool:
        admission = self._context.limits.admission
        return admission is None or admission.gives_extras

    async def _write(self, principal: Principal, requested: Compact | None) -> CompactionWritten | None:
        """Writes a summary; returns None if none is due. Raises what engines and filters raise, and Internal for an
        empty summary."""
        state, at, leaf = self._state, self._state.top, self._state.newest
        if requested is not None and requested.leaf in state.items:
            leaf = requested.leaf
        if requested is None and not (self._gives_extras and self._ledger.policy == "compact"):
            return None
        keep = requested.keep_turns if requested is not None else None
        plan = await self._ledger.compaction(leaf, ChatMessage(role="user", text=INSTRUCTION), keep_turns=keep)
        if plan is None:
            return None
        name = ItemId(derive("cmp", state.key.tenant, state.key.session, plan.read, str(at)))
        if requested is not None and not plan.more:
            name = requested.compaction_id
        text, usage = await self._generate(plan, principal, name)
        if requested is not None:
            usage = self._spent = _sum(self._spent, usage)
        judged = await screened(self._context.filters, principal, text)
        if not judged:
            why = "Filters withheld the summary." if text else "The model wrote no summary."
            raise Internal("compaction_failed", why)
        model, tokenizer = self._context.engine.info.model, self._context.engine.tokenizer
        tokens = await tokenizer.message(summary_message(judged, model))
        cause: Literal["limit", "command"] = "limit" if requested is None else "command"
        return CompactionWritten(
            compaction_id=name,
            at=at,
            items=plan.items,
            read=plan.read,
            text=judged,
            model=model,
            prepared=Prepared(pack_tokens(tokens), tokenizer.fingerprint),
            tokens_before=plan.tokens_before,
            tokens_after=plan.tokens_kept + len(tokens),
            usage=usage,
            cause=cause,
        )

    async def _generate(self, plan: CompactionPlan, principal: Principal, name: ItemId) -> tuple[str, Usage]:
        request = GenerationRequest(
            key=self._state.key,
            response_id=ResponseId(name),
            generation=1,
            prompt=plan.prompt,
            sampling=Sampling(temperature=0.0),
            seed=0,
            max_tokens=plan.tokens_max,
            priority=PRIORITY,
            weight=self._context.limits.share(principal).weight,
            images=self._ledger.images,
        )
        text, output, cached, reason = "", 0, 0, "stop"
        async with aclosing(self._context.engine.generate(request)) as stream:  # type: ignore[type-var]
            async for part in stream:
                cached = part.cached_tokens
                if isinstance(part, Chunk):
                    text += part.text
                    output += len(part.tokens)
                elif isinstance(part, Finish):
                    reason = part.reason
        metrics = self._context.metrics
        metrics.compaction_tokens.add("computed", by=len(plan.prompt) - cached)
        metrics.compaction_tokens.add("cached", by=cached)
        metrics.compaction_tokens.add("output", by=output)
        return cleaned(text, cut_short=reason == "length"), Usage(len(plan.prompt), output, cached)


def _sum(one: Usage, other: Usage) -> Usage:
    return Usage(
        one.input_tokens + other.input_tokens,
        one.output_tokens + other.output_tokens,
        one.cached_tokens + other.cached_tokens,
    )


def cleaned(text: str, *, cut_short: bool) -> str:
    """Returns a summary without the model's thoughts, texts in other channels and repeated sentences; "" if it is a
    tool call. A summary that was cut short is cut back to its last whole sentence."""
    text = _MARK.split(_THOUGHT.sub("", text), maxsplit=1)[0]
    if "<tool_call>" in text:
        return ""
    if cut_short:
        text = _CUT_SHORT.sub("", text) or text
    pieces: list[str] = []
    for piece in _SENTENCES.split(text):
        if not pieces or piece.strip() != pieces[-1].strip():  # a small model says the same thing for ever
            pieces.append(piece)
    return "".join(pieces).strip()
