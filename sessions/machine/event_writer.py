"""Turns released pieces of an answer into Responses events, for one open response.

Text opens a message item with one text part, behind the part of the thoughts that came before it; a call opens a
function_call item; a refusal becomes a part of its own kind. Each event depends on the response's drafts after the one
before it. So `write` and `close_drafts` are generators, and their caller (`sessions.machine.machine`) applies every
event before it asks for the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal

import msgspec
from msgspec import UNSET

from sessions.machine.state import Draft, Open
from sessions.model import events as ev
from sessions.model.types import (
    CallId,
    ContentPart,
    FunctionCall,
    ItemId,
    Json,
    Message,
    OutputText,
    Reasoning,
    Refusal,
    Tool,
    UnixMs,
)


class Text(msgspec.Struct, frozen=True):
    text: str
    logprobs: tuple[Json, ...] = ()


class RefusalText(msgspec.Struct, frozen=True):
    text: str


class Thought(msgspec.Struct, frozen=True):
    text: str


class CallBegin(msgspec.Struct, frozen=True):
    name: str


class CallArguments(msgspec.Struct, frozen=True):
    text: str


Piece = Text | RefusalText | Thought | CallBegin | CallArguments
_DELTAS: Final = (ev.OutputTextDelta, ev.RefusalDelta, ev.ReasoningDelta, ev.ArgumentsDelta)


def write(open_: Open, piece: Piece, now: UnixMs, tools: Sequence[Tool] = ()) -> Iterator[ev.AnyEvent]:
    """Yields the events that `piece` becomes. The caller applies each before it asks for the next. `tools` are the
    session's, by which a call's item says whether the server carries it out."""
    match piece:
        case Text():
            if not _writing_message(open_):
                yield from close_drafts(open_, "completed")
                yield _add_message(open_, now)
            yield from _reasoning_done(open_)
            if not open_.drafts[-1].part_open:
                draft = open_.drafts[-1]
                yield _part_added(open_, draft, draft.text_index, OutputText(text=""))
            yield text_delta(open_, open_.drafts[-1], piece)
        case RefusalText():
            if not _writing_message(open_):
                yield from close_drafts(open_, "incomplete")
                yield _add_message(open_, now)
            yield from _reasoning_done(open_)
            draft = open_.drafts[-1]
            index = draft.text_index + (1 if draft.part_open else 0)
            yield _part_added(open_, draft, index, Refusal(refusal=""))
            yield ev.RefusalDelta(
                response_id=open_.id,
                sequence_number=open_.sequence,
                item_id=draft.item.id,
                output_index=draft.output_index,
                content_index=index,
                delta=piece.text,
            )
        case Thought():
            if not (open_.drafts and open_.drafts[-1].is_thinking):
                yield from close_drafts(open_, "completed")
                yield _add_message(open_, now)
                yield _part_added(open_, open_.drafts[-1], 0, Reasoning(""))
            yield reasoning_delta(open_, open_.drafts[-1], piece)
        case CallBegin():
            yield from close_drafts(open_, "completed")
            index = len(open_.drafts)
            suffix = f"{open_.id.removeprefix('resp_')}_{index}"
            called = next((tool for tool in tools if tool.name == piece.name), None)
            yield ev.OutputItemAdded(
                response_id=open_.id,
                sequence_number=open_.sequence,
                output_index=index,
                item=FunctionCall(
                    id=ItemId(f"fc_{suffix}"),
                    parent_id=open_.last_item,
                    call_id=CallId(f"call_{suffix}"),
                    name=piece.name,
                    arguments="",
                    status="in_progress",
                    created_at=now,
                    server=True if called is not None and called.server is True else UNSET,
                    mcp=UNSET if called is None else called.mcp,
                ),
            )
        case CallArguments():
            draft = open_.drafts[-1]
            yield ev.ArgumentsDelta(
                response_id=open_.id,
                sequence_number=open_.sequence,
                item_id=draft.item.id,
                output_index=draft.output_index,
                delta=piece.text,
            )


def going_on(open_: Open, pieces: tuple[Piece, ...]) -> ev.OutputTextDelta | ev.ReasoningDelta | None:
    """Returns the delta event for a single piece that continues the present text or thoughts, as nearly all pieces do;
    None if it does not, or there are several pieces."""
    if len(pieces) != 1 or not open_.drafts:
        return None
    piece, draft = pieces[0], open_.drafts[-1]
    if draft.done or type(draft.item) is not Message:
        return None
    if type(piece) is Text and draft.part_open:
        return text_delta(open_, draft, piece)
    return reasoning_delta(open_, draft, piece) if type(piece) is Thought and draft.is_thinking else None


def text_delta(open_: Open, draft: Draft, piece: Text) -> ev.OutputTextDelta:
    return ev.OutputTextDelta(
        response_id=open_.body.id,
        sequence_number=open_.sequence,
        item_id=draft.item.id,
        output_index=draft.output_index,
        content_index=draft.text_index,
        delta=piece.text,
        logprobs=piece.logprobs,
    )


def reasoning_delta(open_: Open, draft: Draft, piece: Thought) -> ev.ReasoningDelta:
    return ev.ReasoningDelta(
        response_id=open_.body.id,
        sequence_number=open_.sequence,
        item_id=draft.item.id,
        output_index=draft.output_index,
        content_index=0,
        delta=piece.text,
    )


def _reasoning_done(open_: Open) -> Iterator[ev.AnyEvent]:
    """Yields the done events of the thoughts that are being written, which text or a call now follows; nothing if there
    are none."""
    draft = open_.drafts[-1]
    if not draft.is_thinking:
        return
    part = Reasoning("".join(draft.reasoning))
    yield ev.ReasoningDone(
        response_id=open_.id,
        sequence_number=open_.sequence,
        item_id=draft.item.id,
        output_index=draft.output_index,
        content_index=0,
        text=part.reasoning,
    )
    yield _part_done(open_, draft, 0, part)


def _part_done(open_: Open, draft: Draft, index: int, part: ContentPart) -> ev.ContentPartDone:
    return ev.ContentPartDone(
        response_id=open_.id,
        sequence_number=open_.sequence,
        item_id=draft.item.id,
        output_index=draft.output_index,
        content_index=index,
        part=part,
    )


def carries(piece: Piece, event: ev.AnyEvent) -> bool:
    """Returns whether `event`, one of those that `piece` became, is the one to which the piece's tokens belong."""
    if isinstance(piece, CallBegin):
        return isinstance(event, ev.OutputItemAdded)
    return isinstance(event, _DELTAS)


def _writing_message(open_: Open) -> bool:
    if not open_.drafts:
        return False
    draft = open_.drafts[-1]
    return not draft.done and isinstance(draft.item, Message)


def _add_message(open_: Open, now: UnixMs) -> ev.OutputItemAdded:
    index = len(open_.drafts)
    return ev.OutputItemAdded(
        response_id=open_.id,
        sequence_number=open_.sequence,
        output_index=index,
        item=Message(
            id=ItemId(f"msg_{open_.id.removeprefix('resp_')}_{index}"),
            parent_id=open_.last_item,
            role="assistant",
            content=(),
            status="in_progress",
            created_at=now,
        ),
    )


def _part_added(open_: Open, draft: Draft, index: int, part: ContentPart) -> ev.ContentPartAdded:
    return ev.ContentPartAdded(
        response_id=open_.id,
        sequence_number=open_.sequence,
        item_id=draft.item.id,
        output_index=draft.output_index,
        content_index=index,
        part=part,
    )


def close_drafts(open_: Open, status: Literal["completed", "incomplete"]) -> Iterator[ev.AnyEvent]:
    """Yields the done events of the draft that is still open, if one is."""
    if not open_.drafts or open_.drafts[-1].done:
        return
    draft = open_.drafts[-1]
    item = msgspec.structs.replace(draft.so_far(), status=status)
    if isinstance(item, FunctionCall):
        yield ev.ArgumentsDone(
            response_id=open_.id,
            sequence_number=open_.sequence,
            item_id=item.id,
            output_index=draft.output_index,
            name=item.name,
            arguments=item.arguments,
        )
    else:
        if draft.is_thinking:
            yield from _reasoning_done(open_)
        for index, part in enumerate(item.content):
            if isinstance(part, Reasoning):
                continue  # it was done before the text began
            if isinstance(part, OutputText):
                yield ev.OutputTextDone(
                    response_id=open_.id,
                    sequence_number=open_.sequence,
                    item_id=item.id,
                    output_index=draft.output_index,
                    content_index=index,
                    text=part.text,
                )
            elif isinstance(part, Refusal):
                yield ev.RefusalDone(
                    response_id=open_.id,
                    sequence_number=open_.sequence,
                    item_id=item.id,
                    output_index=draft.output_index,
                    content_index=index,
                    refusal=part.refusal,
                )
            yield _part_done(open_, draft, index, part)
    yield ev.OutputItemDone(
        response_id=open_.id, sequence_number=open_.sequence, output_index=draft.output_index, item=item
    )
