"""Turns released pieces of an answer into Responses events, for one open response.

Text opens a message item with one text part; a call opens a function_call item; a refusal becomes a part of its own
kind. Events are made against the response's drafts as they stand; each is applied before the next is made, which is
why `write` and `close_drafts` are generators: their caller applies every event that they yield
(sessions.machine.machine).
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
    Refusal,
    Tool,
    UnixMs,
)


class Text(msgspec.Struct, frozen=True):
    text: str
    logprobs: tuple[Json, ...] = ()


class RefusalText(msgspec.Struct, frozen=True):
    text: str


class CallBegin(msgspec.Struct, frozen=True):
    name: str


class CallArguments(msgspec.Struct, frozen=True):
    text: str


Piece = Text | RefusalText | CallBegin | CallArguments
_DELTAS: Final = (ev.OutputTextDelta, ev.RefusalDelta, ev.ArgumentsDelta)


def write(open_: Open, piece: Piece, now: UnixMs, tools: Sequence[Tool] = ()) -> Iterator[ev.AnyEvent]:
    """The events that `piece` becomes. The caller applies each before it asks for the next. `tools`: what the session
    has, for a call says whether the server carries it out."""
    match piece:
        case Text():
            if not _writing_message(open_):
                yield from close_drafts(open_, "completed")
                yield _add_message(open_, now)
                yield _part_added(open_, open_.drafts[-1], 0, OutputText(text=""))
            yield text_delta(open_, open_.drafts[-1], piece)
        case RefusalText():
            if not _writing_message(open_):
                yield from close_drafts(open_, "incomplete")
                yield _add_message(open_, now)
            draft = open_.drafts[-1]
            index = 1 if draft.part_open else 0
            yield _part_added(open_, draft, index, Refusal(refusal=""))
            yield ev.RefusalDelta(
                response_id=open_.id,
                sequence_number=open_.sequence,
                item_id=draft.item.id,
                output_index=draft.output_index,
                content_index=index,
                delta=piece.text,
            )
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


def going_on(open_: Open, pieces: tuple[Piece, ...]) -> ev.OutputTextDelta | None:
    """The one event of pieces that only go on with the text that is being written, as nearly all do; None of others."""
    if len(pieces) == 1 and type(pieces[0]) is Text and _writing_message(open_):
        return text_delta(open_, open_.drafts[-1], pieces[0])
    return None


def text_delta(open_: Open, draft: Draft, piece: Text) -> ev.OutputTextDelta:
    return ev.OutputTextDelta(
        response_id=open_.body.id,
        sequence_number=open_.sequence,
        item_id=draft.item.id,
        output_index=draft.output_index,
        content_index=0,
        delta=piece.text,
        logprobs=piece.logprobs,
    )


def carries(piece: Piece, event: ev.AnyEvent) -> bool:
    """Whether `event` is the one of its piece's events that the piece's tokens stand beside."""
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
    """The done events of the draft that is still open, if one is."""
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
        for index, part in enumerate(item.content):
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
            yield ev.ContentPartDone(
                response_id=open_.id,
                sequence_number=open_.sequence,
                item_id=item.id,
                output_index=draft.output_index,
                content_index=index,
                part=part,
            )
    yield ev.OutputItemDone(
        response_id=open_.id, sequence_number=open_.sequence, output_index=draft.output_index, item=item
    )
