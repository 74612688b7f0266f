"""Compaction: a summary takes the place of a conversation's older messages in its prompts, and only there.

Functions over a `StepBuilder`. The log and the item tree keep every message; a summary is no item of the tree and on no
branch. Invariants: a summary is used only while everything that its model has read exists unchanged. If some of that is
retracted, the summary and its text are retracted too; a branch that leaves before the last message that was read is
continued without it. A summary begins and ends between turns, so a call is never separated from its output. None takes
effect while an answer is under way, whose prompt must be the same after a failure.

Does not know tokens: `sessions.turn.context_fitting` computes what is summarised, and when.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sessions.machine import item_tree
from sessions.machine.inputs_and_effects import Compact, CompactionGivenUp, CompactionWritten, ShortenedContext
from sessions.machine.item_tree import busy_conflict
from sessions.machine.responses import compaction_id_of
from sessions.machine.state import State, compaction_of, summaries_of
from sessions.machine.step_builder import StepBuilder
from sessions.model import commands as cm
from sessions.model import events as ev
from sessions.model.errors import BadInput, Conflict, Internal, NotFound
from sessions.model.types import InputText, ItemId, Message, Principal, ResponseId

PINNED_MAX: Final = 64


def request(build: StepBuilder, principal: Principal, command: cm.SessionCompact) -> cm.Ok:
    """Requests a summary for a command. Raises NotFound for an unknown item, Conflict while an answer is under way."""
    state = build.state
    if command.item_id is not None and command.item_id not in state.items:
        raise _item_not_found(command.item_id)
    _check_idle(state)
    name = compaction_id_of(state.key, principal, command.id)
    build.out.effects.append(Compact(name, principal, command.keep_turns, command.item_id))
    return cm.Ok(id=command.id, session=state.key.session, offset=state.top, compaction_id=name)


def undo(build: StepBuilder, command: cm.CompactionUndo) -> cm.Ok:
    """Takes a summary out of prompts. Raises NotFound, and Conflict while an answer is under way."""
    state, name = build.state, command.compaction_id
    _check_idle(state)
    if name is None:
        newest = compaction_of(state, state.newest)
        name = newest.id if newest is not None else None
    if name is None or name not in state.compactions:
        raise NotFound("compaction_not_found", "There is no such summary in force here.", param="compaction_id")
    build.put(ev.CompactionUndone(compaction_id=name))
    return cm.Ok(id=command.id, session=state.key.session, offset=state.top, compaction_id=name)


def pin(build: StepBuilder, command: cm.ItemPin) -> cm.Ok:
    """Pins or unpins an item. Raises Conflict, NotFound, BadInput."""
    state, item_id = build.state, command.item_id
    if item_id not in state.items:
        raise _item_not_found(item_id)
    _check_idle(state)
    known = (item_id in state.pinned) == command.pinned
    if not known:
        if command.pinned and len(state.pinned) >= PINNED_MAX:
            raise BadInput("too_many_pins", f"A session has at most {PINNED_MAX} pinned items.", param="item_id")
        build.put(ev.ItemPinned(item_id=item_id, pinned=command.pinned))
    return cm.Ok(id=command.id, session=state.key.session, item_id=item_id, offset=state.top, noop=known)


def write_summary(build: StepBuilder, input: CompactionWritten) -> None:
    """Puts a summary in force. Does nothing if what it was made from has changed, or an answer has begun; if a command
    was promised this summary, `context.compaction_failed` is then written into the log."""
    state = build.state
    if state.info is None or state.deleted or input.compaction_id in state.compactions:
        return
    stands = state.retracted_at <= input.at and input.read in state.items
    path = item_tree.branch(state, input.read) if stands else []
    if state.busy or not 0 < input.items <= len(path):
        if input.last:
            what = "An answer began, or something was taken back, before the summary was written: request it again."
            spent = input.usage.input_tokens + input.usage.output_tokens
            give_up(build, CompactionGivenUp(input.compaction_id, Internal("compaction_failed", what), spent))
        return
    summary = Message(
        id=input.compaction_id,
        parent_id=None,
        role="user",
        content=(InputText(text=input.text),),
        status="completed",
        created_at=build.now,
    )
    build.put(
        ev.ContextCompacted(
            summary=summary,
            model=input.model,
            items=input.items,
            first_item_id=path[0].id,
            last_item_id=path[input.items - 1].id,
            read_item_id=input.read,
            tokens_before=input.tokens_before,
            tokens_after=input.tokens_after,
            usage=input.usage.public(),
            cause=input.cause,
        ),
        ev.Private(tokens=input.prepared.tokens, fingerprint=input.prepared.fingerprint),
    )
    build.out.effects.append(ShortenedContext())


def give_up(build: StepBuilder, input: CompactionGivenUp) -> None:
    """Writes into the log why a requested compaction will not be made."""
    if build.state.info is None or build.state.deleted:
        return
    error = {"code": input.error.code, "message": input.error.public_message}
    private = ev.Private(spent=input.spent) if input.spent else None
    build.put(ev.CompactionFailed(compaction_id=input.compaction_id, error=error), private)


def void(build: StepBuilder, items: Sequence[ItemId]) -> None:
    """Retracts the text of each summary that has read one of these items, before the items are retracted themselves."""
    state = build.state
    for name, summary in summaries_of(state, items).items():
        build.put(
            ev.ContentRetracted(
                response_id=ResponseId(""),
                item_id=name,
                content_index=0,
                start=0,
                end=summary.length,
                replacement="",
                category=ev.COMPACTION_VOIDED,
            )
        )


def _item_not_found(item_id: ItemId) -> NotFound:
    return NotFound("item_not_found", f"There is no item {item_id!r} in this session.", param="item_id")


def _check_idle(state: State) -> None:
    if state.busy:
        raise _busy(state)


def _busy(state: State) -> Conflict:
    return busy_conflict("response_in_progress" if state.open or state.queue else "tools_pending")
